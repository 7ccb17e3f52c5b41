//! The user to which a daemon changes that root has started: `process.user`.
//!
//! It changes before it opens anything, as systemd's `User=` does it, so files and sockets belong to that user.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};

use anyhow::Context;
use rustix::process::{Gid, Resource, Rlimit, Uid, getegid, geteuid, getgroups, setrlimit};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

use crate::config::{Config, Error};

/// A user of this host.
#[derive(Debug, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
    /// Further groups.
    groups: Vec<u32>,
}

/// The user as whom a check takes the daemon to run.
#[derive(Debug)]
pub struct DaemonUser {
    /// `process.user`, or this process's.
    pub uid: u32,
    /// Whether `process.user` names it. If not, a service manager may start the daemon as another one.
    pub is_named: bool,
    /// Its groups; none for root, who may give files to any.
    pub groups: Option<Vec<u32>>,
    /// Why a start by this process is refused, if it is because of the user.
    pub refusal: Option<String>,
}

/// The user of a daemon with this configuration.
///
/// # Errors
/// There is no user `process.user`, or a part needs root's rights.
pub fn of_daemon(config: &Config) -> Result<DaemonUser, Error> {
    let (own, wanted) = (geteuid(), wanted(config)?);
    let is_named = wanted.is_some();
    if let Some(user) = wanted.filter(|user| own.as_raw() != user.uid) {
        let refusal = check_root(&user).err().map(|error| error.to_string());
        let groups = Some([vec![user.gid], user.groups].concat());
        return Ok(DaemonUser { uid: user.uid, is_named, groups, refusal });
    }
    let groups = getgroups().unwrap_or_default().into_iter().chain([getegid()]).map(Gid::as_raw);
    let groups = (!own.is_root()).then(|| groups.collect());
    Ok(DaemonUser { uid: own.as_raw(), is_named, groups, refusal: None })
}

/// Changes to `process.user`, if it is set, before there are other threads.
///
/// # Errors
/// As [`of_daemon`], or this process is neither root's nor that user's.
pub fn change(config: &Config) -> anyhow::Result<()> {
    let Some(user) = other(config)? else { return Ok(()) };
    // Only root may raise it. The daemon locks memory only if the limit permits it to the user.
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
    make_folder(config, &user).context("can't create listen.dir")?;
    let groups: Vec<_> = user.groups.iter().map(|&group| Gid::from_raw(group)).collect();
    set_thread_groups(&groups)
        .and_then(|()| set_thread_gid(Gid::from_raw(user.gid)))
        .and_then(|()| set_thread_uid(Uid::from_raw(user.uid)))
        .with_context(|| format!("can't change to user {} (process.user)", user.uid))
}

/// Creates the folder of the sockets, which the user may not be able to create.
fn make_folder(config: &Config, user: &User) -> io::Result<()> {
    let Some(dir) = &config.listen.dir else { return Ok(()) };
    match DirBuilder::new().mode(0o755).create(dir) {
        Ok(()) => chown(dir, Some(user.uid), Some(user.gid)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// The user to change to, if that is another one.
fn other(config: &Config) -> Result<Option<User>, Error> {
    let other = wanted(config)?.filter(|user| geteuid().as_raw() != user.uid);
    other.as_ref().map_or(Ok(()), check_root)?;
    Ok(other)
}

/// Only root can change to another user.
fn check_root(user: &User) -> Result<(), Error> {
    let own = geteuid();
    if own.is_root() {
        return Ok(());
    }
    let line = format!("process.user is {}, but user {own} started the daemon", user.uid);
    Err(Error::new(format!("{line}: only root can change to another user")))
}

fn wanted(config: &Config) -> Result<Option<User>, Error> {
    let name = &config.process.user;
    if name.is_empty() {
        return Ok(None);
    }
    if config.lend.borrows() || !config.vms.is_empty() {
        let line =
            "process.user can't be set where the daemon borrows memory or has guests ([[vm]])";
        return Err(Error::new(format!("{line}: these need root's rights")));
    }
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let user = find(name, &read("/etc/passwd"), &read("/etc/group"));
    user.map(Some)
        .ok_or_else(|| Error::new(format!("process.user: no user '{name}' in /etc/passwd")))
}

/// Finds a user by name or number, in the words of passwd(5) and group(5).
fn find(name: &str, passwd: &str, group: &str) -> Option<User> {
    let entries = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let entry = entries.filter(|it| it.len() >= 4).find(|it| it[0] == name || it[2] == name)?;
    let groups = group.lines().filter_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        let is_member = fields.get(3)?.split(',').any(|member| member == entry[0]);
        if is_member { fields[2].parse().ok() } else { None }
    });
    Some(User {
        uid: entry[2].parse().ok()?,
        gid: entry[3].parse().ok()?,
        groups: groups.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nbroken:x\nspill:x:991:990::/:/usr/sbin/nologin\n";
        let group = "root:x:0:\nspill:x:990:\ntls:x:105:web,spill\nkvm:x:106:spill2\n";
        let spill = User { uid: 991, gid: 990, groups: vec![105] };
        assert_eq!(find("spill", passwd, group).as_ref(), Some(&spill));
        assert_eq!(find("991", passwd, group), Some(spill));
        assert_eq!(find("990", passwd, group), None);
        assert_eq!(find("broken", passwd, group), None);
    }
}
