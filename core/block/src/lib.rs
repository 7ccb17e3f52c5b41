//! Block devices over the page store: sparse, elastic, reserved in full.
