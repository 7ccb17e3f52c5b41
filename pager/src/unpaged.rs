//! Programs that bring an allocator and address space of their own. They can't be paged, and their start fails
//! beside the preload library.

/// Functions by which programs start a sanitizer, and its name.
pub const SANITIZERS: [(&str, &str); 5] = [
    ("__asan_init", "AddressSanitizer"),
    ("__hwasan_init", "HWAddressSanitizer"),
    ("__tsan_init", "ThreadSanitizer"),
    ("__msan_init", "MemorySanitizer"),
    ("__lsan_init", "LeakSanitizer"),
];

/// What the program `valgrind` starts, and the name of that one where no script hides it.
pub const VALGRIND: [&str; 2] = ["valgrind.bin", "valgrind"];

/// The place in [`SANITIZERS`] of the one that this function starts.
#[must_use]
pub fn sanitizer_started_by(function: &[u8]) -> Option<usize> {
    SANITIZERS.iter().position(|(start, _)| start.as_bytes() == function)
}
