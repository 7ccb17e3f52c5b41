//! Keys, certificates, secrets and tokens: read from their files at the start, and again at each reload.
//!
//! Their users share them, so that new ones replace the old while the daemon runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use spillway_api::Tokens;
use spillway_directory::{ClientSettings, Secret};
use spillway_lending::HostId;
use spillway_tls::{ClientSettings as TlsClient, Files, ServerSettings, Versions};

use crate::config::{Config, Error, Listen};
use crate::read_secret::read_secret;
use crate::secret_files::{distinct, read_token, read_tokens};

/// The files' contents when they were read.
pub struct Keys {
    /// The files' paths.
    named: Box<Config>,
    /// The tokens that requests over TCP must carry.
    pub tokens: Option<Arc<RwLock<Tokens>>>,
    pub tls: Option<Tls>,
    /// The secret that the daemon proves to hosts that request it.
    pub nvme_secret: Arc<RwLock<Option<spillway_nvme_tcp::Secret>>>,
    /// The secret that this host's kernel proves to lenders, in direct mode.
    pub lend_secret: Arc<RwLock<Option<String>>>,
    /// Secrets and passwords of clients, by name, for the client registry.
    clients: BTreeMap<String, Secret>,
}

/// Keys and certificates, ready for use.
#[derive(Debug)]
pub struct Tls {
    keys: spillway_tls::Keys,
    /// For front ends with third-party clients.
    pub any_version: ServerSettings,
    /// For the HTTP interface, whose peers show a token instead of a certificate.
    pub api: ServerSettings,
    /// For front ends whose clients are all Spillway's.
    pub tls13: ServerSettings,
    /// Further keys for lending.
    pub lending: Option<LendingTls>,
}

/// Identity of a host that lends or borrows.
#[derive(Clone, Debug)]
pub struct LendingTls {
    /// This host's name in the certificate.
    pub host: HostId,
    /// For connections to others.
    pub client: TlsClient,
}

impl Keys {
    /// Reads all files. `clients` were read already.
    ///
    /// # Errors
    /// The first file that is not valid.
    pub fn read(config: &Config, clients: &[ClientSettings]) -> Result<Self, Error> {
        Ok(Self {
            named: Box::new(config.clone()),
            tokens: read_tokens(&config.listen)?.map(RwLock::new).map(Arc::new),
            tls: Tls::read(config)?,
            nvme_secret: Arc::new(RwLock::new(nvme_secret(&config.listen)?)),
            lend_secret: Arc::new(RwLock::new(lend_secret(config)?)),
            clients: secrets_of(clients),
        })
    }

    /// Reads the files again, and changes nothing yet. If a setting names another file than at the start, it needs a
    /// restart: the old contents stay in use.
    ///
    /// # Errors
    /// The first file that is not valid, or that can't be used without a restart.
    pub fn read_again(&self, new: &Config, clients: &[ClientSettings]) -> Result<Renewal, Error> {
        let (listen, others) = (&self.named.listen, &new.listen);
        let mut renewal = Renewal { clients: secrets_of(clients), ..Renewal::default() };
        renewal.tokens = self.tokens_again(others)?;
        let trio = |its: &Listen| {
            [&its.tls_certificate, &its.tls_key, &its.tls_clients].map(Option::clone)
        };
        if trio(listen) == trio(others) {
            renewal.tls = Tls::read(&self.named)?;
        } else {
            renewal.left = Some("listen.tls_certificate, tls_key and tls_clients");
        }
        if listen.nvme_tcp_secret_file == others.nvme_tcp_secret_file {
            renewal.nvme_secret = nvme_secret(listen)?;
        }
        if self.named.lend.secret_file == new.lend.secret_file {
            renewal.lend_secret = lend_secret(&self.named)?;
        }
        let lending = |tls: &Option<Tls>| Some(tls.as_ref()?.lending.as_ref()?.host.clone());
        if let (Some(is), Some(named)) = (lending(&self.tls), lending(&renewal.tls))
            && is != named
        {
            return Err(Error::new(format!(
                "listen.tls_certificate names this host '{named}' now, but it lends and borrows as '{is}': \
                 restart the daemon, or take a certificate of the old name"
            )));
        }
        Ok(renewal)
    }

    /// Reads each token again whose file is still the same as at the start.
    fn tokens_again(&self, new: &Listen) -> Result<Option<Tokens>, Error> {
        let Some(tokens) = &self.tokens else { return Ok(None) };
        let mut tokens = tokens.read().unwrap_or_else(PoisonError::into_inner).clone();
        let named = &self.named.listen;
        if let Some(file) = &named.api_token_file
            && new.api_token_file == named.api_token_file
        {
            tokens.all = read_token("api_token_file", file)?;
        }
        if let Some(file) = &named.api_read_token_file
            && new.api_read_token_file == named.api_read_token_file
        {
            tokens.read = Some(read_token("api_read_token_file", file)?);
        }
        distinct(tokens).map(Some)
    }

    /// Puts the new contents into use for new connections. Returns the settings whose files had
    /// changed.
    pub fn renew(&mut self, renewal: Renewal) -> Vec<String> {
        let mut changed = Vec::new();
        let mut note = |setting: &str| changed.push(setting.to_owned());
        if let (Some(own), Some(tokens)) = (&self.tokens, renewal.tokens) {
            let mut own = own.write().unwrap_or_else(PoisonError::into_inner);
            if own.all != tokens.all {
                note("listen.api_token_file");
            }
            if own.read != tokens.read {
                note("listen.api_read_token_file");
            }
            *own = tokens;
        }
        if let (Some(own), Some(tls)) = (&mut self.tls, renewal.tls) {
            own.renew(tls, &mut note);
        }
        for (setting, is_new) in [
            ("listen.nvme_tcp_secret_file", put(&self.nvme_secret, renewal.nvme_secret)),
            ("lend.secret_file", put(&self.lend_secret, renewal.lend_secret)),
        ] {
            if is_new {
                note(setting);
            }
        }
        for (name, secret) in &renewal.clients {
            if self.clients.get(name).is_some_and(|known| known != secret) {
                note(&format!("the secret of client '{name}'"));
            }
        }
        self.clients = renewal.clients;
        changed
    }
}

/// New contents that are not in use yet. Anything that was not read stays as it is.
#[derive(Default)]
pub struct Renewal {
    /// Settings that were all skipped because one of them names another file than at the start.
    pub left: Option<&'static str>,
    tokens: Option<Tokens>,
    tls: Option<Tls>,
    nvme_secret: Option<spillway_nvme_tcp::Secret>,
    lend_secret: Option<String>,
    clients: BTreeMap<String, Secret>,
}

/// Replaces a value; returns whether it differs.
fn put<T: PartialEq>(place: &RwLock<Option<T>>, value: Option<T>) -> bool {
    let mut place = place.write().unwrap_or_else(PoisonError::into_inner);
    let is_new = value.is_some() && *place != value;
    if is_new {
        *place = value;
    }
    is_new
}

impl Tls {
    fn read(config: &Config) -> Result<Option<Self>, Error> {
        let Some(files) = files(&config.listen)? else { return Ok(None) };
        let error = |error: spillway_tls::Error| Error::new(format!("listen.tls_*: {error}"));
        let keys = spillway_tls::Keys::read(&files).map_err(error)?;
        let server = |versions| ServerSettings::new(&keys, versions).map_err(error);
        let (any_version, tls13) = (server(Versions::Tls12And13)?, server(Versions::Tls13)?);
        let lending = config.lend.is_on().then(|| LendingTls::new(&keys, &files.certificate));
        let lending = lending.transpose()?;
        let api = ServerSettings::of_any_client(&keys, Versions::Tls12And13).map_err(error)?;
        Ok(Some(Self { keys, any_version, api, tls13, lending }))
    }

    /// The first DNS name in the certificate, if it is that of one host.
    pub fn name(&self) -> Option<String> {
        self.keys.name().ok().filter(|name| !name.starts_with('*'))
    }

    fn renew(&mut self, new: Self, note: &mut dyn FnMut(&str)) {
        let differences = self.keys.differences(&new.keys);
        for (is_new, setting) in [
            (differences.certificate, "listen.tls_certificate"),
            (differences.key, "listen.tls_key"),
            (differences.authority, "listen.tls_clients"),
        ] {
            if is_new {
                note(setting);
            }
        }
        self.any_version.renew(&new.any_version);
        self.api.renew(&new.api);
        self.tls13.renew(&new.tls13);
        if let (Some(own), Some(new)) = (&self.lending, &new.lending) {
            own.client.renew(&new.client);
        }
        self.keys = new.keys;
    }
}

impl LendingTls {
    fn new(keys: &spillway_tls::Keys, certificate: &Path) -> Result<Self, Error> {
        let shown = certificate.display();
        let error = |error: &dyn std::fmt::Display| {
            Error::new(format!("listen.tls_certificate {shown}: {error}"))
        };
        let name = keys.name().map_err(|why| error(&why))?;
        let host = HostId::new(&name).map_err(|why| error(&why))?;
        let client = TlsClient::new(keys, host.as_str());
        let client = client.map_err(|why| Error::new(format!("listen.tls_*: {why}")))?;
        Ok(Self { host, client })
    }
}

fn files(listen: &Listen) -> Result<Option<Files>, Error> {
    match (&listen.tls_certificate, &listen.tls_key) {
        (Some(certificate), Some(key)) => Ok(Some(Files {
            certificate: certificate.clone(),
            key: key.clone(),
            authority: listen.tls_clients.clone(),
        })),
        (None, None) => Ok(None),
        _ => Err(Error::new("listen.tls_certificate and listen.tls_key go together")),
    }
}

fn nvme_secret(listen: &Listen) -> Result<Option<spillway_nvme_tcp::Secret>, Error> {
    let Some(path) = listen.nvme_tcp_secret_file.as_deref() else { return Ok(None) };
    let error = |why: &dyn std::fmt::Display| {
        Error::new(format!("listen.nvme_tcp_secret_file {}: {why}", path.display()))
    };
    let text = read_secret(path).map_err(|why| error(&why))?;
    spillway_nvme_tcp::Secret::parse(&text).map(Some).map_err(|why| error(&why))
}

fn lend_secret(config: &Config) -> Result<Option<String>, Error> {
    let Some(path) = config.lend.secret_file.as_deref().filter(|_| config.lend.is_on()) else {
        return Ok(None);
    };
    let error = |why: &dyn std::fmt::Display| {
        Error::new(format!("lend.secret_file {}: {why}", path.display()))
    };
    let shown = path.display();
    let text = read_secret(path)
        .map_err(|why| Error::new(format!("can't read lend.secret_file {shown}: {why}")))?;
    // The kernel takes the text as it is, so check its form now.
    spillway_nvme_tcp::Secret::parse(&text).map_err(|why| error(&why))?;
    Ok(Some(text.trim().to_owned()))
}

fn secrets_of(clients: &[ClientSettings]) -> BTreeMap<String, Secret> {
    let secrets = clients.iter().map(|client| Some((client.name.clone(), client.secret.clone()?)));
    secrets.flatten().collect()
}

/// Directories of all these files, and of the files to which they link: a new file replaces the old one, or a link is
/// changed.
pub fn folders(config: &Config) -> Vec<PathBuf> {
    // A missing file was refused already, or is not needed.
    let of = |file: &Path| [Some(parent(file)), fs::canonicalize(file).ok().map(|it| parent(&it))];
    named(config).flat_map(of).flatten().collect()
}

/// These files, and the configuration `file`, that exist but that this process is not permitted to read.
pub fn unreadable(config: &Config, file: Option<&Path>) -> Vec<PathBuf> {
    let refused = |path: &&Path| access(*path, Access::READ_OK) == Err(Errno::ACCESS);
    file.into_iter().chain(named(config)).filter(refused).map(Path::to_owned).collect()
}

/// All files that the configuration names for keys, certificates, secrets, passwords and tokens.
fn named(config: &Config) -> impl Iterator<Item = &Path> {
    let listen = &config.listen;
    let ours = [
        &listen.tls_certificate,
        &listen.tls_key,
        &listen.tls_clients,
        &listen.nvme_tcp_secret_file,
        &listen.api_token_file,
        &listen.api_read_token_file,
        &config.lend.secret_file,
    ];
    let clients = config.clients.iter();
    let theirs = clients.flat_map(|client| [&client.secret_file, &client.password_file]);
    ours.into_iter().chain(theirs).flatten().map(PathBuf::as_path)
}

/// The directory of a file.
pub fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => PathBuf::from("."),
    }
}
