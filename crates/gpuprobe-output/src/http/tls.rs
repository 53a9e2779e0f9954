//! The TLS settings of the web config.

use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
    SupportedProtocolVersion,
};

use super::web_config::{Source, TlsSection};

/// The client authentication of the web config, which uses the names of Go's `ClientAuthType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientAuth {
    /// No certificate.
    None,
    /// Any certificate, or none.
    Any,
    /// Any certificate.
    RequiredAny,
    /// A certificate signed by the authority, or none.
    Verified,
    /// A certificate signed by the authority.
    RequiredVerified,
}

impl ClientAuth {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "" | "NoClientCert" => Self::None,
            "RequestClientCert" => Self::Any,
            "RequireAnyClientCert" | "RequireClientCert" => Self::RequiredAny,
            "VerifyClientCertIfGiven" => Self::Verified,
            "RequireAndVerifyClientCert" => Self::RequiredVerified,
            _ => return None,
        })
    }
}

/// The TLS settings of the server, or an error about the section.
pub(super) fn server_config(section: &TlsSection, source: &mut Source<'_>) -> Result<ServerConfig, String> {
    let (Some(cert_file), Some(key_file)) = (&section.cert_file, &section.key_file) else {
        return Err("tls_server_config needs both cert_file and key_file".to_owned());
    };
    let provider = Arc::new(ring::default_provider());
    let versions = versions(section)?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)
        .map_err(|e| format!("these TLS versions are not supported: {e}"))?;
    let builder = match client_verifier(section, provider, source)? {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
    };
    let chain = certificates(source, "cert_file", cert_file)?;
    let key = PrivateKeyDer::from_pem_slice(&source.read("key_file", key_file)?)
        .map_err(|e| format!("key_file {key_file}: no private key in PEM form without a password: {e}"))?;
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|e| format!("key_file {key_file} and cert_file {cert_file} do not match: {e}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.ignore_client_order = section.prefer_server_cipher_suites.unwrap_or(true);
    Ok(config)
}

fn versions(section: &TlsSection) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    const ALL: [(&str, &SupportedProtocolVersion); 2] = [("TLS12", &TLS12), ("TLS13", &TLS13)];
    let index = |key: &str, name: &Option<String>, default: usize| match name {
        None => Ok(default),
        Some(name) => ALL
            .iter()
            .position(|(known, _)| known == name)
            .ok_or_else(|| format!("{key} {name}: use TLS12 or TLS13")),
    };
    let (least, most) =
        (index("min_version", &section.min_version, 0)?, index("max_version", &section.max_version, 1)?);
    if least > most {
        return Err("min_version is above max_version".to_owned());
    }
    Ok(ALL[least..=most].iter().map(|(_, version)| *version).collect())
}

fn certificates(
    source: &mut Source<'_>,
    key: &str,
    file: &str,
) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = source.read(key, file)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|e| format!("{key} {file}: no certificates in PEM form: {e}"))?;
    if all.is_empty() {
        return Err(format!("{key} {file}: contains no certificate in PEM form"));
    }
    Ok(all)
}

fn client_verifier(
    section: &TlsSection,
    provider: Arc<CryptoProvider>,
    source: &mut Source<'_>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
    let name = section.client_auth_type.as_deref().unwrap_or_default();
    let wanted = ClientAuth::of(name).ok_or_else(|| {
        format!("client_auth_type {name}: use NoClientCert, RequestClientCert, RequireAnyClientCert, VerifyClientCertIfGiven or RequireAndVerifyClientCert")
    })?;
    let unverified = |is_required| -> Option<Arc<dyn ClientCertVerifier>> {
        Some(Arc::new(AnyCertificate { provider: Arc::clone(&provider), is_required }))
    };
    match wanted {
        ClientAuth::None if section.client_ca_file.is_some() => {
            Err("client_ca_file has no effect without a client_auth_type: RequireAndVerifyClientCert accepts only clients with a certificate of this authority".to_owned())
        }
        ClientAuth::None => Ok(None),
        ClientAuth::Any => Ok(unverified(false)),
        ClientAuth::RequiredAny => Ok(unverified(true)),
        ClientAuth::Verified | ClientAuth::RequiredVerified => {
            let Some(file) = &section.client_ca_file else {
                return Err(format!("client_auth_type {name} needs a client_ca_file"));
            };
            let mut roots = RootCertStore::empty();
            for certificate in certificates(source, "client_ca_file", file)? {
                roots.add(certificate).map_err(|e| format!("client_ca_file {file}: {e}"))?;
            }
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let builder = if wanted == ClientAuth::Verified { builder.allow_unauthenticated() } else { builder };
            builder.build().map(Some).map_err(|e| format!("client_ca_file {file}: {e}"))
        }
    }
}

/// Accepts every certificate whose private key the client has. This does not identify the client.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
    is_required: bool,
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
