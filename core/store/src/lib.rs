//! The page store: clients, pools, objects, indexes.
