//! Replays the fuzzer's corpus. fuzz/corpus has a folder for each reader.

use std::path::Path;

use spillway_sim::inputs::READERS;

#[test]
fn every_reader_withstands_the_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, read) in READERS {
        let folder = corpus.join(name);
        let files = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut inputs = 0;
        for file in files {
            let path = file.expect("a readable folder").path();
            println!("{}", path.display());
            read(&std::fs::read(&path).expect("a readable file"));
            inputs += 1;
        }
        assert!(inputs != 0, "{name} has no corpus");
    }
}
