//! Cloud Hypervisor's proposed handover (cloud-hypervisor/cloud-hypervisor#8644, #8657, #8664): a JSON object on
//! a stream socket. The userfaultfd and then the memory files come by SCM_RIGHTS. If the proposals use different
//! field names, both are accepted.

use serde::Deserialize;

use super::document;
use crate::{Claimed, Error};

const MONITOR: &str = "Cloud Hypervisor";
const VERSION: u64 = 1;

#[derive(Deserialize)]
struct Message {
    #[serde(rename = "type")]
    kind: String,
    version: u64,
    mode: Option<String>,
    regions: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    #[serde(alias = "host_addr")]
    host_virt_addr: u64,
    #[serde(alias = "length")]
    size: u64,
    #[serde(alias = "backing_offset", default)]
    file_offset: u64,
    #[serde(alias = "fault_size", default = "small")]
    page_size: u64,
    /// Index among the memory files, from 0.
    fd_index: Option<usize>,
}

const fn small() -> u64 {
    4096
}

pub fn decode(bytes: &[u8], files: usize) -> Result<Option<Vec<Claimed>>, Error> {
    let Some(message) = document::<Message>(MONITOR, bytes)? else { return Ok(None) };
    if message.kind != "handoff" {
        let why = format!("its type is '{}', not 'handoff'", message.kind);
        return Err(Error::Message { monitor: MONITOR, why });
    }
    if message.version != VERSION {
        return Err(Error::Version(message.version));
    }
    if let Some(mode) = message.mode {
        check_mode(mode)?;
    }
    let claim = |(at, named): (usize, Named)| Claimed {
        address: named.host_virt_addr,
        bytes: named.size,
        offset: named.file_offset,
        page_bytes: named.page_size,
        // By default one file for all regions, or one for each in order.
        file: named.fd_index.unwrap_or(if files == 1 { 0 } else { at }),
    };
    Ok(Some(message.regions.into_iter().enumerate().map(claim).collect()))
}

/// Checks the registration mode. The manager reads a page while its writers are blocked; with WP_ASYNC the kernel does
/// not block them.
fn check_mode(mode: String) -> Result<(), Error> {
    let has = |token: &str| mode.split('|').any(|its| its.trim() == token);
    if has("MISSING") && has("WP") && !has("WP_ASYNC") {
        return Ok(());
    }
    Err(Error::Mode(mode))
}

pub fn answer(outcome: Result<(), &Error>) -> String {
    let mut line = match outcome {
        Ok(()) => serde_json::json!({"type": "ready", "version": VERSION}),
        Err(why) => {
            serde_json::json!({"type": "refused", "version": VERSION, "reason": why.to_string()})
        }
    }
    .to_string();
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"type":"handoff","version":1,"vmm_pid":7,"mode":"MISSING|WP","regions":[
        {"guest_phys_addr":0,"host_virt_addr":139637976727552,"size":65536,"page_size":4096,"file_offset":4096,"fd_index":1},
        {"guest_phys_addr":4294967296,"host_addr":4096,"length":8192,"backing_offset":0,"fault_size":4096}]}
"#;

    #[test]
    fn both_spellings_are_read_and_the_rest_is_waited_for() {
        let regions = decode(TEXT.as_bytes(), 2).unwrap().unwrap();
        let first = &regions[0];
        assert_eq!((first.address, first.bytes, first.offset), (139637976727552, 65536, 4096));
        assert_eq!((first.file, first.page_bytes), (1, 4096));
        assert_eq!((regions[1].address, regions[1].bytes, regions[1].file), (4096, 8192, 1));
        assert_eq!(decode(TEXT.as_bytes(), 1).unwrap().unwrap()[1].file, 0);
        for end in 0..TEXT.len() - 2 {
            assert_eq!(decode(&TEXT.as_bytes()[..end], 2), Ok(None), "{end}");
        }
    }

    #[test]
    fn what_is_no_hand_over_is_one_line() {
        for (text, word) in [
            ("[]", "Cloud Hypervisor"),
            ("nonsense", "Cloud Hypervisor"),
            ("{}", "type"),
            (r#"{"type":"ping","version":1,"regions":[]}"#, "ping"),
            (r#"{"type":"handoff","version":2,"regions":[]}"#, "version 2"),
            (r#"{"type":"handoff","version":1,"mode":"MISSING","regions":[]}"#, "WP"),
            (
                r#"{"type":"handoff","version":1,"mode":"MISSING|WP|WP_ASYNC","regions":[]}"#,
                "ASYNC",
            ),
            (r#"{"type":"handoff","version":1,"regions":[{"host_virt_addr":-1,"size":1}]}"#, "-1"),
            (r#"{"type":"handoff","version":1,"regions":[{"size":1}]}"#, "host_virt_addr"),
            (r#"{"type":"handoff","version":1,"regions":[]} {"type"#, "after"),
        ] {
            let line = decode(text.as_bytes(), 1).unwrap_err().to_string();
            assert!(line.contains(word) && !line.contains('\n'), "{text}: {line}");
        }
    }

    #[test]
    fn the_monitor_is_told_the_outcome_in_a_line() {
        assert_eq!(answer(Ok(())), "{\"type\":\"ready\",\"version\":1}\n");
        assert!(answer(Err(&Error::NoRegion)).contains("names no region"));
    }
}
