//! Virtual clock, network and faults for the state machines.
