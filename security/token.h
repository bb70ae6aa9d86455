// Join tokens: what a broker's owner hands to people. A token names the broker by the hash of its public key,
// so that a client can check the broker before it sends the secret; the broker keeps only a hash of the
// secret.
//   weft1-<base32 of: role u8, broker key hash 32, id 8, secret 16, checksum 4>
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "base/result.h"

namespace weft::security {

class Identity;

// A caller's is for the broker's HTTP door alone: it admits nobody to the broker itself.
enum class Role : uint8_t { Peer = 1, Submitter = 2, Admin = 3, Caller = 4 };
std::string_view to_string(Role role);  // "peer", "submitter", "admin", "caller"
Result<Role> parse_role(std::string_view text);

struct TokenSecret {
  std::array<uint8_t, 16> bytes{};
  bool operator==(const TokenSecret&) const =
      default;  // only for tests: compare digests with equal_in_constant_time
};

struct Token {
  Role role = Role::Peer;
  PeerId broker{};
  uint64_t id = 0;  // random; printed as 16 hexadecimal digits
  TokenSecret secret{};
  bool operator==(const Token&) const = default;
};
Token make_token(Role role, const PeerId& broker);  // id and secret from the system's random source
// The same one each time, so that it can be shown again without being kept: id and secret are derived from
// the broker's private key. Another number, another token. Errors: Internal, where OpenSSL fails.
Result<Token> derive_token(Role role, const Identity& broker, uint32_t number);
std::string to_text(const Token& token);
// InvalidArgument (says what is wrong: length, alphabet, checksum), VersionMismatch for another prefix
// number. Spaces and line ends around it are ignored; letters of either case.
Result<Token> parse_token(std::string_view text);

// SHA-256 of "weft token secret" and the secret: what is stored.
Digest secret_digest(const TokenSecret& secret);
bool equal_in_constant_time(const Digest& a, const Digest& b);

void fill_random(std::span<uint8_t> out);  // from the system

}  // namespace weft::security
