// A certificate for "localhost" and 127.0.0.1 that signs itself, with a key of its own, as PEM files.
#pragma once

#include <string>

namespace weft::web::test {

struct CertificateFiles {
  std::string certificate, key;
};
const CertificateFiles& files_of_certificate();  // made at the first call, in the tests' folder
CertificateFiles write_certificate(const std::string& folder);  // those that are there stay

}  // namespace weft::web::test
