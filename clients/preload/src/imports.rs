//! The functions that the program and its libraries import, from their dynamic symbols.

use libc::{Elf64_Phdr, Elf64_Sym, c_int, c_void, dl_phdr_info, size_t};
use std::ffi::CStr;

/// An entry of the dynamic section (elf(5)).
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

const PT_DYNAMIC: u32 = 2;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
/// Libraries to skip: those that make system calls on behalf of their callers, and those that make none.
const NOT_ASKED: [&str; 6] = [
    "/libc.so.",
    "/libm.so.",
    "/ld-linux",
    "linux-vdso",
    "libspillway_preload.so",
    "/libgcc_s.so.",
];

type Find = fn(&[u8]) -> Option<usize>;

/// The result of `find` for the first imported function, of the program or its libraries, that `find` knows.
pub fn find(find: Find) -> Option<usize> {
    let mut state: (Find, Option<usize>) = (find, None);
    // SAFETY: the callback gets the pointer to `state`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut state).cast()) };
    state.1
}

/// As [`find`], of those that the program itself takes.
pub fn find_in_program(find: Find) -> Option<usize> {
    let mut state: (Find, Option<usize>) = (find, None);
    // SAFETY: as above.
    unsafe { libc::dl_iterate_phdr(Some(look_at_first), (&raw mut state).cast()) };
    state.1
}

/// The loader begins with the program.
unsafe extern "C" fn look_at_first(
    info: *mut dl_phdr_info,
    _: size_t,
    state: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a valid object; `find_in_program` passes its state.
    unsafe {
        let state = &mut *state.cast::<(Find, Option<usize>)>();
        state.1 = find_in(&*info, state.0);
    }
    1
}

unsafe extern "C" fn look(info: *mut dl_phdr_info, _: size_t, state: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid object; `find` passes its state.
    unsafe {
        let (info, state) = (&*info, &mut *state.cast::<(Find, Option<usize>)>());
        let name = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
        let text = String::from_utf8_lossy(name.to_bytes());
        if !NOT_ASKED.iter().any(|part| text.contains(part)) {
            state.1 = find_in(info, state.0);
        }
        c_int::from(state.1.is_some())
    }
}

/// # Safety
/// The object must be loaded, and its dynamic section relocated.
unsafe fn find_in(info: &dl_phdr_info, find: Find) -> Option<usize> {
    // SAFETY: the tables are at the addresses in the object's headers, and end as the format defines.
    unsafe {
        let headers: &[Elf64_Phdr] =
            std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        let dynamic = headers.iter().find(|header| header.p_type == PT_DYNAMIC)?;
        let mut entry = (info.dlpi_addr + dynamic.p_vaddr) as *const Dynamic;
        let (mut symbols, mut strings, mut count) = (0, 0, 0);
        while (*entry).tag != 0 {
            let value = (*entry).value;
            match (*entry).tag {
                DT_SYMTAB => symbols = value,
                DT_STRTAB => strings = value,
                // DT_HASH holds the number of all symbols. DT_GNU_HASH holds the number of imported ones, which come
                // first.
                DT_HASH if count == 0 => count = *((value + 4) as *const u32),
                DT_GNU_HASH => count = *((value + 4) as *const u32),
                _ => {}
            }
            entry = entry.add(1);
        }
        if symbols == 0 || strings == 0 {
            return None;
        }
        let all = std::slice::from_raw_parts(symbols as *const Elf64_Sym, count as usize);
        all.iter().filter(|symbol| symbol.st_shndx == 0 && symbol.st_name != 0).find_map(|symbol| {
            let name = (strings + symbol.st_name as usize) as *const libc::c_char;
            find(CStr::from_ptr(name).to_bytes())
        })
    }
}
