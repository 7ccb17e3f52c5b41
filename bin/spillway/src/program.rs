//! Finds the program and checks before it starts whether a preloaded library can manage it.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, elf};
use rustix::fs::{Access, getxattr};
use rustix::process::{getegid, geteuid};
use spillway_pager::unpaged::{SANITIZERS, VALGRIND, sanitizer_started_by};

use crate::refusal::Refusal;

/// Advice for programs that `spillway run` can't page.
const KERNELS_WAY: &str = "use a cgroup memory limit with swap instead";
/// How many nested scripts the kernel follows.
const SCRIPT_DEPTH: usize = 5;
/// The kernel reads this much of a script to find its interpreter.
const SHEBANG_BYTES: u64 = 256;

/// Finds `name` as execvp(3) does and checks that it can be paged.
///
/// # Errors
/// One line, if the program is missing, is not executable, or can't be managed by a preloaded
/// library.
pub fn find(name: &OsStr) -> Result<PathBuf, Refusal> {
    let path = locate(name, &env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into()))?;
    check(&path, SCRIPT_DEPTH)?;
    Ok(path)
}

fn locate(name: &OsStr, search: &OsStr) -> Result<PathBuf, Refusal> {
    let shown = name.display();
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Err(error) => Err(Refusal::not_found(format!("can't run {shown}: {}", plain(&error)))),
            Ok(_) if is_executable(&path) => Ok(path),
            Ok(_) => Err(Refusal::not_executable(format!("can't run {shown}: not executable"))),
        };
    }
    let mut found_other = None;
    for dir in env::split_paths(search) {
        let path = dir.join(name);
        if is_executable(&path) {
            return Ok(path);
        }
        if !name.is_empty() && path.is_file() {
            found_other = Some(path);
        }
    }
    Err(match found_other {
        Some(path) => {
            Refusal::not_executable(format!("can't run {}: not executable", path.display()))
        }
        None => Refusal::not_found(format!("can't run '{shown}': not found in PATH")),
    })
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

fn check(path: &Path, depth: usize) -> Result<(), Refusal> {
    let shown = path.display();
    if gains_privileges(path) {
        return Err(Refusal::usage(format!(
            "{shown} is set-user-id or has file capabilities, so the loader ignores preloaded \
             libraries: start it as its own user, or {KERNELS_WAY}"
        )));
    }
    if path.file_name().is_some_and(|name| VALGRIND.iter().any(|known| name == *known)) {
        return Err(refused(path, "runs programs by an allocator and address space of its own"));
    }
    let mut file = match File::open(path) {
        Ok(file) => file,
        // Execute-only files can still be run; what they are stays unknown.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        Err(error) => {
            return Err(Refusal::not_executable(format!("can't read {shown}: {}", plain(&error))));
        }
    };
    let mut start = Vec::new();
    file.by_ref().take(SHEBANG_BYTES).read_to_end(&mut start).map_err(|error| {
        Refusal::not_executable(format!("can't read {shown}: {}", plain(&error)))
    })?;
    if let Some(line) = start.strip_prefix(b"#!") {
        return check_interpreter(path, line, depth);
    }
    let unknown =
        || Refusal::not_executable(format!("{shown} is neither an ELF program nor a #! script"));
    if !start.starts_with(&elf::ELFMAG) {
        return Err(unknown());
    }
    match inspect(&file).map_err(|_| unknown())? {
        Image::Dynamic { interpreter } if interpreter.exists() => Ok(()),
        Image::Sanitized(name) => Err(refused(
            path,
            &format!("is built with {name}, which has an allocator and signals of its own"),
        )),
        Image::Dynamic { interpreter } => Err(Refusal::not_found(format!(
            "can't run {shown}: its loader {} is missing",
            interpreter.display()
        ))),
        Image::Musl => Err(refused(path, "is linked against musl, and the library needs glibc")),
        Image::Static => Err(refused(path, "is a static program, which loads no library")),
        Image::Go => Err(refused(path, "is a Go program, whose memory bypasses the C library")),
        Image::Foreign => Err(refused(path, "is built for an architecture other than x86-64")),
    }
}

fn refused(path: &Path, why: &str) -> Refusal {
    Refusal::usage(format!("{} {why}: it can't be paged; {KERNELS_WAY}", path.display()))
}

/// Follows `#!interpreter [argument]`, and through env(1) the program that it will start.
fn check_interpreter(script: &Path, line: &[u8], depth: usize) -> Result<(), Refusal> {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let Some(interpreter) = words.next().map(OsStr::from_bytes) else {
        return Err(Refusal::not_executable(format!("{} names no interpreter", script.display())));
    };
    if depth == 0 {
        return Err(Refusal::not_executable(format!(
            "{}: too many scripts run one another",
            script.display()
        )));
    }
    let behind_env = Path::new(interpreter).ends_with("env");
    let target = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
    let name = match target {
        Some(word) if behind_env => OsStr::from_bytes(word),
        _ => interpreter,
    };
    let search = env::var_os("PATH").unwrap_or_default();
    let path = locate(name, &search)
        .map_err(|error| Refusal::not_found(format!("{}: {error}", script.display())))?;
    check(&path, depth - 1)
}

/// Whether exec would change the user, the group or the capabilities: the loader then drops
/// LD_PRELOAD (AT_SECURE, ld.so(8)).
fn gains_privileges(path: &Path) -> bool {
    let Ok(meta) = fs::metadata(path) else { return false };
    let (user, group) = (geteuid(), getegid());
    let other_user = meta.mode() & 0o4000 != 0 && meta.uid() != user.as_raw();
    let other_group = meta.mode() & 0o2010 == 0o2010 && meta.gid() != group.as_raw();
    let capabilities = !user.is_root()
        && getxattr(path, "security.capability", &mut [0u8; 64][..]).is_ok_and(|len| len > 0);
    other_user || other_group || capabilities
}

/// What kind of program an ELF file holds.
#[derive(Debug, PartialEq, Eq)]
enum Image {
    Dynamic {
        interpreter: PathBuf,
    },
    Musl,
    /// With a sanitizer of this name.
    Sanitized(&'static str),
    Static,
    Go,
    Foreign,
}

fn inspect(file: &File) -> Result<Image, object::Error> {
    let cache = ReadCache::new(file);
    inspect_elf(&cache)
}

fn inspect_elf<'data, R: ReadRef<'data>>(data: R) -> Result<Image, object::Error> {
    let Ok(header) = elf::FileHeader64::<Endianness>::parse(data) else {
        return Ok(Image::Foreign);
    };
    let endian = header.endian()?;
    if header.e_machine(endian) != elf::EM_X86_64 {
        return Ok(Image::Foreign);
    }
    // A Go program built with cgo is dynamic, and its heap is Go's own all the same.
    let sections = header.sections(endian, data)?;
    let go = [&b".go.buildinfo"[..], b".note.go.buildid"];
    if sections.iter().any(|section| {
        sections.section_name(endian, section).is_ok_and(|name| go.contains(&name))
            && section.sh_size(endian) > 0
    }) {
        return Ok(Image::Go);
    }
    if let Some(name) = sanitizer(header, endian, data)? {
        return Ok(Image::Sanitized(name));
    }
    for segment in header.program_headers(endian, data)? {
        if let Some(path) = segment.interpreter(endian, data)? {
            let interpreter = PathBuf::from(OsStr::from_bytes(path));
            let musl = path.windows(7).any(|part| part == b"ld-musl");
            return Ok(if musl { Image::Musl } else { Image::Dynamic { interpreter } });
        }
    }
    Ok(Image::Static)
}

/// The sanitizer that a program is built with: it calls the sanitizer's start, or has it inside.
fn sanitizer<'data, R: ReadRef<'data>>(
    header: &elf::FileHeader64<Endianness>,
    endian: Endianness,
    data: R,
) -> Result<Option<&'static str>, object::Error> {
    let sections = header.sections(endian, data)?;
    // A sanitizer that is linked in exports nothing. Its debug symbols reveal it, if they are present.
    for table in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
        let symbols = sections.symbols(endian, data, table)?;
        let names = symbols.iter().filter_map(|symbol| symbol.name(endian, symbols.strings()).ok());
        if let Some(kind) = names.into_iter().find_map(sanitizer_started_by) {
            return Ok(Some(SANITIZERS[kind].1));
        }
    }
    Ok(None)
}

/// An error's text without Rust's "(os error N)".
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    fn write(dir: &tempfile::TempDir, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn refusal_of(path: &Path) -> (u8, String) {
        let error = find(path.as_os_str()).unwrap_err();
        (error.code(), error.to_string())
    }

    /// Builds a small C program; `flags` choose what kind.
    fn compile(dir: &tempfile::TempDir, name: &str, flags: &[&str]) -> PathBuf {
        let source = write(dir, "main.c", b"int main(void){return 0;}", 0o644);
        let path = dir.path().join(name);
        let done = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&path).status();
        assert!(done.unwrap().success());
        path
    }

    #[test]
    fn dynamic_programs_and_scripts_pass() {
        let dir = tempfile::tempdir().unwrap();
        let program = compile(&dir, "dynamic", &[]);
        assert_eq!(find(program.as_os_str()).unwrap(), program);
        let script = write(&dir, "script", b"#!/usr/bin/env sh\n", 0o755);
        assert_eq!(find(script.as_os_str()).unwrap(), script);
        assert!(find(OsStr::new("sh")).unwrap().is_absolute());
    }

    #[test]
    fn static_programs_and_their_scripts_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let program = compile(&dir, "static", &["-static"]);
        let (code, line) = refusal_of(&program);
        assert_eq!(code, 2);
        assert!(line.contains("static program"), "{line}");
        let script =
            write(&dir, "script", format!("#!{} -x\n", program.display()).as_bytes(), 0o755);
        assert!(refusal_of(&script).1.contains("static program"));
        let pie = compile(&dir, "static-pie", &["-static-pie"]);
        assert!(refusal_of(&pie).1.contains("static program"));
    }

    #[test]
    fn other_architectures_and_go_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let program = compile(&dir, "dynamic", &[]);
        let mut bytes = fs::read(&program).unwrap();
        bytes[18] = 0xf7;
        let path = write(&dir, "other", &bytes, 0o755);
        assert!(refusal_of(&path).1.contains("an architecture other"));
        let go = dir.path().join("go");
        let note = write(&dir, "note", b"Go build ID", 0o644);
        let done = Command::new("objcopy")
            .arg(format!("--add-section=.note.go.buildid={}", note.display()))
            .args([&program, &go])
            .status();
        assert!(done.unwrap().success());
        assert!(refusal_of(&go).1.contains("Go program"));
    }

    #[test]
    fn sanitizers_and_valgrind_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (flag, name) in [("address", "Address"), ("thread", "Thread"), ("leak", "Leak")] {
            for linked in ["", "-static-lib"] {
                let library = if linked.is_empty() {
                    "-O1".to_owned()
                } else {
                    format!("{linked}{}san", &flag[..1])
                };
                let sanitize = format!("-fsanitize={flag}");
                let program = compile(&dir, flag, &[&sanitize, &library]);
                let (code, line) = refusal_of(&program);
                assert_eq!(code, 2, "{line}");
                assert!(line.contains(name) && !line.contains('\n'), "{line}");
            }
        }
        let checker = compile(&dir, "valgrind.bin", &[]);
        let wrapper = write(&dir, "wrapper", b"#!/bin/sh -e\nexec valgrind.bin\n", 0o755);
        assert_eq!(refusal_of(&checker).0, 2);
        let named = dir.path().join("valgrind");
        fs::rename(wrapper, &named).unwrap();
        assert_eq!(refusal_of(&named).0, 2);
    }

    #[test]
    fn missing_and_not_executable_have_the_codes_of_env() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(refusal_of(&dir.path().join("missing")).0, 127);
        assert_eq!(refusal_of(Path::new("no-such-program-here")).0, 127);
        assert_eq!(refusal_of(&write(&dir, "plain", b"#!/bin/sh\n", 0o644)).0, 126);
        assert_eq!(refusal_of(&write(&dir, "text", b"hello\n", 0o755)).0, 126);
        assert_eq!(refusal_of(&write(&dir, "orphan", b"#!/no/such/one\n", 0o755)).0, 127);
        assert_eq!(refusal_of(&write(&dir, "cut", b"\x7fELF\x02\x01", 0o755)).0, 2);
    }

    #[test]
    fn a_script_that_runs_itself_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("loop");
        write(&dir, "loop", format!("#!{}\n", path.display()).as_bytes(), 0o755);
        assert!(refusal_of(&path).1.contains("too many"));
    }

    #[test]
    fn programs_of_another_user_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let program = compile(&dir, "suid", &[]);
        if !geteuid().is_root() {
            return; // Only root can give a file away.
        }
        std::os::unix::fs::chown(&program, Some(1), Some(1)).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(refusal_of(&program).1.contains("set-user-id"));
        fs::set_permissions(&program, fs::Permissions::from_mode(0o2755)).unwrap();
        assert!(refusal_of(&program).1.contains("set-user-id"));
    }
}
