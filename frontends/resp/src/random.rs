//! Random numbers.

/// A random number.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without the kernel's random numbers the address of a local suffices: it differs between processes.
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
        return std::ptr::from_ref(&bytes) as u64;
    }
    u64::from_ne_bytes(bytes)
}
