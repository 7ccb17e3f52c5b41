//! Page faults turned into store requests.
