//! Files with secrets: reads the tokens of the HTTP interface, and warns of files that every user
//! can read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use spillway_api::Tokens;

use crate::config::{Config, Error, Listen};
use crate::read_secret::read_secret;

/// Shortest token of the HTTP interface.
const TOKEN_BYTES_MIN: usize = 16;
/// The bit of a file's mode that lets every user read it.
const OTHERS_READ: u32 = 0o004;

/// Reads the tokens of the HTTP interface.
///
/// # Errors
/// A file can't be read, or does not contain a valid token.
pub fn read_tokens(listen: &Listen) -> Result<Option<Tokens>, Error> {
    let Some(file) = &listen.api_token_file else { return Ok(None) };
    let all = read_token("api_token_file", file)?;
    let read = listen.api_read_token_file.as_deref();
    let read = read.map(|file| read_token("api_read_token_file", file)).transpose()?;
    distinct(Tokens { all, read }).map(Some)
}

/// The tokens, if they differ.
///
/// # Errors
/// The two tokens are equal.
pub fn distinct(tokens: Tokens) -> Result<Tokens, Error> {
    if tokens.read.as_ref() == Some(&tokens.all) {
        return Err(Error::new(
            "listen.api_read_token_file has the token of api_token_file, which permits everything; make another",
        ));
    }
    Ok(tokens)
}

/// Reads a token of the HTTP interface.
///
/// # Errors
/// The file can't be read, or does not contain a valid token.
pub fn read_token(setting: &str, path: &Path) -> Result<Arc<str>, Error> {
    let shown = path.display();
    let text = read_secret(path)
        .map_err(|error| Error::new(format!("can't read listen.{setting} {shown}: {error}")))?;
    let token = text.trim();
    if token.len() < TOKEN_BYTES_MIN || token.contains(char::is_whitespace) {
        return Err(Error::new(format!(
            "listen.{setting} {shown}: one line of at least {TOKEN_BYTES_MIN} characters without spaces; \
             make one with openssl rand -hex 32"
        )));
    }
    Ok(token.into())
}

/// A line for each file with a secret that every user of this host can read.
pub fn open_to_all(config: &Config) -> Vec<String> {
    let listen = &config.listen;
    let ours = [
        ("listen.api_token_file", &listen.api_token_file),
        ("listen.api_read_token_file", &listen.api_read_token_file),
        ("listen.tls_key", &listen.tls_key),
        ("listen.nvme_tcp_secret_file", &listen.nvme_tcp_secret_file),
        ("lend.secret_file", &config.lend.secret_file),
    ];
    let clients = config.clients.iter().flat_map(|client| {
        [
            ("client.secret_file", &client.secret_file),
            ("client.password_file", &client.password_file),
        ]
    });
    let files = ours.into_iter().chain(clients);
    let files = files.filter_map(|(setting, path)| Some((setting, path.as_deref()?)));
    files
        .filter(|(_, path)| fs::metadata(path).is_ok_and(|it| it.mode() & OTHERS_READ != 0))
        .map(|(setting, path)| {
            let path = path.display();
            format!("{setting} {path} can be read by every user of this host: chmod o= {path}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_that_everybody_can_read_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, mode| {
            let path = folder.path().join(name);
            fs::write(&path, "0123456789abcdef").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Some(path)
        };
        let mut config = crate::config::read(None, &[]).unwrap();
        config.listen.api_token_file = file("token", 0o640);
        config.listen.tls_key = file("key", 0o604);
        config.lend.secret_file = file("secret", 0o644);
        config.listen.nvme_tcp_secret_file = Some(folder.path().join("missing"));
        let lines = open_to_all(&config);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("listen.tls_key ") && lines[0].contains("chmod o= "));
        assert!(lines[1].starts_with("lend.secret_file "));
    }

    #[test]
    fn the_two_tokens_differ() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, token: &str| {
            let path = folder.path().join(name);
            fs::write(&path, token).unwrap();
            Some(path)
        };
        let all = file("all", "0123456789abcdef\n");
        let mut listen = Listen { api_token_file: all.clone(), ..Listen::default() };
        assert!(read_tokens(&listen).unwrap().unwrap().read.is_none());
        listen.api_read_token_file = all;
        assert!(read_tokens(&listen).unwrap_err().to_string().contains("make another"));
        listen.api_read_token_file = file("short", "0123456789abcde\n");
        assert!(read_tokens(&listen).unwrap_err().to_string().contains("api_read_token_file"));
        listen.api_read_token_file = file("read", "0123456789abcdeg\n");
        let tokens = read_tokens(&listen).unwrap().unwrap();
        assert_eq!(
            (&*tokens.all, tokens.read.as_deref()),
            ("0123456789abcdef", Some("0123456789abcdeg"))
        );
    }
}
