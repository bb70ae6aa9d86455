// OpenSSL's objects of an identity: for security/ and net/ alone.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <optional>

#include "base/result.h"
#include "security/identity.h"

namespace weft::security {

struct Release {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using KeyPtr = std::unique_ptr<EVP_PKEY, Release>;
using CertificatePtr = std::unique_ptr<X509, Release>;

struct Identity::Keys {
  KeyPtr key;                  // private and public half
  CertificatePtr certificate;  // signed by itself, made anew in each process
};

// The SHA-256 of the key's DER SubjectPublicKeyInfo; nothing when it is no Ed25519 key.
std::optional<PeerId> peer_id(const EVP_PKEY* key);

// A certificate that carries the key through TLS. It is valid at all times: expiry would be a second, worse
// way to take trust away, which depends on clocks.
Result<CertificatePtr> make_certificate(EVP_PKEY* key);

// What OpenSSL's error queue says last; empties the queue.
std::string openssl_error();

}  // namespace weft::security
