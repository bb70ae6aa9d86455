// Who one is: an Ed25519 key pair and the certificate that carries it through TLS. A peer's id is the hash of
// its public key; names and addresses prove nothing.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "base/result.h"

namespace weft::security {

class Identity {
 public:
  // Reads DIR/identity.pem (PKCS#8 private key), or makes a key and writes it with mode 0600, atomically.
  // Errors: PermissionDenied when others may read the file, Corrupted when it holds no Ed25519 key, what the
  // disk says.
  static Result<std::unique_ptr<Identity>> load_or_create(const std::filesystem::path& folder);
  // Reads a file that is such a key. NotFound, and as above.
  static Result<std::unique_ptr<Identity>> load(const std::filesystem::path& file);
  // Writes such a file, mode 0600, where nothing is yet: else InvalidArgument.
  Status save(const std::filesystem::path& file) const;
  static Result<std::unique_ptr<Identity>> generate();  // in memory only, for tests and one-time clients
  ~Identity();
  Identity(const Identity&) = delete;
  Identity& operator=(const Identity&) = delete;

  const PeerId& id() const { return id_; }
  bool was_created() const { return created_; }

  // Bytes that nobody else can make and this key makes again and again: HKDF-SHA256 of the private key.
  // Another purpose, other bytes; neither tells anything of the key. Errors: Internal, where OpenSSL fails.
  Status derive(std::string_view purpose, std::span<uint8_t> out) const;

  struct Keys;  // OpenSSL's objects, for net/ and security/ only (security/keys.h)
  const Keys& keys() const { return *keys_; }

 private:
  Identity();
  Status complete();  // what follows from the key: the id and the certificate
  std::unique_ptr<Keys> keys_;
  PeerId id_;
  bool created_ = false;
};

}  // namespace weft::security
