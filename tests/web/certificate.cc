#include "tests/web/certificate.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/check.h"

namespace weft::web::test {

namespace {

void put_extension(X509* certificate, int kind, const char* value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value);
  WEFT_CHECK(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

std::shared_ptr<X509> make_certificate(EVP_PKEY* key) {
  const std::shared_ptr<X509> certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 24L * 3600);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME* name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"),
                             -1, -1, 0);
  X509_set_issuer_name(certificate.get(), name);
  put_extension(certificate.get(), NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  put_extension(certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
  WEFT_CHECK(X509_sign(certificate.get(), key, EVP_sha256()) > 0);
  return certificate;
}

}  // namespace

CertificateFiles write_certificate(const std::string& folder) {
  std::filesystem::create_directories(folder);
  const CertificateFiles files{folder + "/web-test-certificate.pem", folder + "/web-test-key.pem"};
  if (std::filesystem::exists(files.certificate) && std::filesystem::exists(files.key)) return files;
  const std::shared_ptr<EVP_PKEY> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const auto certificate = make_certificate(key.get());
  std::FILE* out = std::fopen(files.certificate.c_str(), "w");
  WEFT_CHECK(out != nullptr && PEM_write_X509(out, certificate.get()) == 1);
  std::fclose(out);
  out = std::fopen(files.key.c_str(), "w");
  WEFT_CHECK(out != nullptr &&
             PEM_write_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1);
  std::fclose(out);
  return files;
}

const CertificateFiles& files_of_certificate() {
  // Of this process: they are valid for a day, and others may be writing theirs.
  struct Folder {
    const std::string path = WEFT_TEST_TMP "/web." + std::to_string(::getpid());
    const CertificateFiles files = write_certificate(path);
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Folder kFolder;
  return kFolder.files;
}

}  // namespace weft::web::test
