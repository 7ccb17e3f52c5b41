//! Keys, ids, sizes and statuses: the words every part of Spillway speaks.
