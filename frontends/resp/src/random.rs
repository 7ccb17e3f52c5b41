//! Random numbers.

/// A random number.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without the kernel's the address of a local will do: it tells processes apart.
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
        return std::ptr::from_ref(&bytes) as u64;
    }
    u64::from_ne_bytes(bytes)
}
