#include "security/keys.h"

#include <openssl/err.h>
#include <openssl/sha.h>

namespace weft::security {

std::string openssl_error() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  if (code == 0) return "no reason given";
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : "error " + std::to_string(code);
}

std::optional<PeerId> peer_id(const EVP_PKEY* key) {
  if (key == nullptr || EVP_PKEY_get_id(key) != EVP_PKEY_ED25519) return std::nullopt;
  unsigned char* der = nullptr;
  const int size = i2d_PUBKEY(key, &der);
  if (size <= 0) return std::nullopt;
  PeerId id;
  SHA256(der, static_cast<size_t>(size), id.digest.bytes.data());
  OPENSSL_free(der);
  return id;
}

Result<CertificatePtr> make_certificate(EVP_PKEY* key) {
  CertificatePtr certificate(X509_new());
  const auto failed = [] {
    return fail(ErrorCode::Internal, "cannot make a certificate: " + openssl_error());
  };
  if (!certificate) return failed();
  X509* x = certificate.get();
  X509_NAME* name = X509_get_subject_name(x);
  const auto* text = reinterpret_cast<const unsigned char*>("weft");
  if (X509_set_version(x, X509_VERSION_3) != 1 || ASN1_INTEGER_set(X509_get_serialNumber(x), 1) != 1 ||
      ASN1_TIME_set_string(X509_getm_notBefore(x), "20000101000000Z") != 1 ||
      ASN1_TIME_set_string(X509_getm_notAfter(x), "99991231235959Z") != 1 ||
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, text, -1, -1, 0) != 1 ||
      X509_set_issuer_name(x, name) != 1 || X509_set_pubkey(x, key) != 1 || X509_sign(x, key, nullptr) <= 0)
    return failed();
  return certificate;
}

}  // namespace weft::security
