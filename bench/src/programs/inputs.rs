//! The programs and their inputs.

use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::by_size;

/// A program, its command, and its local memory.
pub struct Program {
    /// Its name in the rows.
    pub name: &'static str,
    /// The command.
    pub words: Vec<String>,
    /// Local memory, bytes.
    pub local_bytes: u64,
    /// At most one of its threads faults at a time.
    pub one_thread: bool,
}

/// Starts a server, fills it, and asks it.
const SERVERS: &str = include_str!("servers.py");

/// Fills a dictionary and reads it at random.
const DICT: &str = "\
import random, sys
random.seed(1)
count = int(sys.argv[1])
table = {i: 'value %d' % (i * 7919 % 1000003) for i in range(count)}
total = 0
for _ in range(2 * count):
    total += len(table[random.randrange(count)])
print(len(table), total)
";

/// Reads objects of a map at random.
const MAP: &str = "\
const count = Number(process.argv[2]);
const map = new Map();
for (let i = 0; i < count; i++) map.set(i, { id: i, text: `value ${(i * 7919) % 1000003}` });
let at = 1, sum = 0;
for (let i = 0; i < 2 * count; i++) {
  at = (at * 1103515245 + 12345) % 2147483648;
  sum += map.get(at % count).text.length;
}
console.log(map.size, sum);
";

/// Arrays in a map. Some are replaced, which creates garbage.
const MAPS: &str = "\
import java.util.HashMap;
public class Maps {
    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        HashMap<Integer, byte[]> map = new HashMap<>();
        for (int round = 0; round < 3; round++)
            for (int key = round; key < count; key += round + 1) {
                byte[] value = new byte[200 + key % 1000];
                value[key % value.length] = (byte) (key + round);
                map.put(key, value);
            }
        long sum = 0;
        for (int key = 0; key < count; key++) sum = sum * 1000003 + map.get(key)[key % map.get(key).length];
        System.out.println(map.size() + \" \" + sum);
    }
}
";

/// The programs whose faults come one after the other. A server's client waits while the server faults.
const ONE_THREAD: [&str; 7] = ["xz", "sort", "python", "g++", "sqlite", "memcached", "redis"];

/// A table with two indexes.
const TABLE: &str = "\
CREATE TABLE entry (id INTEGER PRIMARY KEY, hash INTEGER, name TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT COUNT)
INSERT INTO entry SELECT i, (i * 2654435761) % 4294967296, 'name ' || ((i * 40503) % 1000003) FROM n;
CREATE INDEX by_hash ON entry (hash);
CREATE INDEX by_name ON entry (name, hash);
SELECT count(*), sum(hash), sum(length(name)) FROM entry;
SELECT name, count(*), min(id) FROM entry GROUP BY name ORDER BY 2 DESC, 1 LIMIT 20;
UPDATE entry SET hash = hash + 1 WHERE id % 7 = 0;
SELECT sum(hash) FROM entry INDEXED BY by_hash WHERE hash > 0;
";

/// Writes the inputs into the folder. Returns the programs.
pub fn all(folder: &Path) -> anyhow::Result<Vec<Program>> {
    text(&folder.join("text"), by_size(16, 2))?;
    text(&folder.join("lines"), by_size(120, 8))?;
    fs::write(folder.join("dict.py"), DICT)?;
    fs::write(folder.join("map.js"), MAP)?;
    fs::write(folder.join("servers.py"), SERVERS)?;
    fs::write(folder.join("Maps.java"), MAPS)?;
    let count = by_size("800000", "60000");
    fs::write(folder.join("table.sql"), TABLE.replace("COUNT", count))?;
    fs::write(folder.join("large.cc"), source(by_size(400, 10)))?;
    let compiled = Command::new("javac").arg("Maps.java").current_dir(folder).status();
    ensure!(compiled.context("javac")?.success(), "javac failed");

    let heap = by_size("-Xmx160m", "-Xmx64m");
    let objects = by_size("160000", "30000");
    let program = |name, local_mib: u64, words: &[&str]| Program {
        name,
        words: words.iter().map(|&word| word.to_owned()).collect(),
        local_bytes: local_mib << 20,
        one_thread: ONE_THREAD.contains(&name),
    };
    let (keys, requests) = (by_size("250000", "20000"), by_size("320000", "6400"));
    let server = |name| {
        let words = ["/usr/bin/python3", "servers.py", name, keys, requests];
        program(name, by_size(96, 16), &words)
    };
    Ok(vec![
        program("xz", by_size(48, 24), &["xz", "-6", "-T1", "-c", "text"]),
        program("sort", by_size(48, 8), &["sort", "-S", "200M", "--parallel=1", "lines"]),
        program(
            "python",
            by_size(40, 8),
            &["/usr/bin/python3", "dict.py", by_size("700000", "100000")],
        ),
        program("node", by_size(48, 16), &["node", "map.js", by_size("700000", "50000")]),
        program("java-g1", by_size(48, 16), &["java", heap, "-XX:+UseG1GC", "Maps", objects]),
        program(
            "java-serial",
            by_size(48, 16),
            &["java", heap, "-XX:+UseSerialGC", "Maps", objects],
        ),
        program("g++", by_size(96, 24), &["g++", "-O1", "-c", "large.cc", "-o", "/dev/stdout"]),
        program("sqlite", by_size(32, 4), &["sqlite3", ":memory:", ".read table.sql"]),
        server("memcached"),
        server("redis"),
    ])
}

/// Writes lines of words, this many MiB.
fn text(path: &Path, mib: usize) -> anyhow::Result<()> {
    let mut random = SmallRng::seed_from_u64(7);
    let mut file = BufWriter::new(fs::File::create(path)?);
    let mut written = 0;
    while written < mib << 20 {
        let words = random.random_range(3..12);
        let mut line = String::new();
        for _ in 0..words {
            // As in text, a few words are frequent and most are rare.
            let rank = (1.0 / random.random_range(0.0002..1.0f64)) as u64;
            line.push_str(&format!("{:x} ", rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 36));
        }
        line.push('\n');
        written += line.len();
        file.write_all(line.as_bytes())?;
    }
    Ok(file.flush()?)
}

/// C++ code that makes a compiler use much memory: many functions over containers.
fn source(functions: usize) -> String {
    let mut text = String::from("#include <map>\n#include <string>\n#include <vector>\n");
    for number in 0..functions {
        text.push_str(&format!(
            "struct S{number} {{ int a[{}]; bool operator<(const S{number} &o) const {{ return a[0] < o.a[0]; }} }};\n\
             int f{number}(std::map<S{number}, std::vector<std::string>> &m, const S{number} &k) {{\n\
             \x20   m[k].push_back(std::to_string(k.a[0] + {number}));\n\
             \x20   int n = 0;\n    for (auto &p : m) n += p.second.size() * {number};\n    return n;\n}}\n",
            number % 7 + 1
        ));
    }
    text
}
