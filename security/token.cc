#include "security/token.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>

#include "security/identity.h"

namespace weft::security {

namespace {

constexpr std::string_view kPrefix = "weft1-";
// Without i, l, o and u: what is read aloud or copied by hand has one spelling.
constexpr std::string_view kAlphabet = "0123456789abcdefghjkmnpqrstvwxyz";

constexpr size_t kBodySize = 1 + 32 + 8 + 16;  // what the checksum covers
constexpr size_t kChecksumSize = 4;
constexpr size_t kTokenSize = kBodySize + kChecksumSize;
constexpr size_t kTextSize = (kTokenSize * 8 + 4) / 5;
using TokenBytes = std::array<uint8_t, kTokenSize>;

Digest sha256(std::span<const uint8_t> bytes) {
  Digest digest;
  SHA256(bytes.data(), bytes.size(), digest.bytes.data());
  return digest;
}

std::string base32(const TokenBytes& bytes) {
  std::string text;
  text.reserve(kTextSize);
  uint32_t bits = 0;
  int count = 0;
  for (const uint8_t byte : bytes) {
    bits = bits << 8 | byte;
    for (count += 8; count >= 5; count -= 5) text += kAlphabet[bits >> (count - 5) & 31];
  }
  if (count > 0) text += kAlphabet[bits << (5 - count) & 31];
  return text;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

tl::unexpected<Error> invalid(const std::string& why) {
  return fail(ErrorCode::InvalidArgument,
              "token: " + why + "; copy the whole line that `weft token create` printed");
}

// The digits of `text`, which has kTextSize of them.
Result<TokenBytes> from_base32(std::string_view text) {
  TokenBytes bytes{};
  uint32_t bits = 0;
  int count = 0;
  size_t filled = 0;
  for (const char c : text) {
    const size_t digit = kAlphabet.find(lower(c));
    if (digit == std::string_view::npos) return invalid("it holds a character that no token has");
    bits = bits << 5 | static_cast<uint32_t>(digit);
    count += 5;
    if (count >= 8 && filled < bytes.size()) {
      count -= 8;
      bytes[filled++] = static_cast<uint8_t>(bits >> count);
    }
  }
  // The bits that are left over are zero, so that no two texts mean one token.
  if ((bits & ((1u << count) - 1)) != 0) return invalid("its end is damaged");
  return bytes;
}

// "weft<digits>-" of another number is another format, from a newer or older weft.
bool has_other_version(std::string_view text) {
  if (text.substr(0, 4) != "weft") return false;
  size_t at = 4;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
  return at > 4 && at < 10 && at < text.size() && text[at] == '-' && text.substr(0, at + 1) != kPrefix;
}

}  // namespace

std::string_view to_string(Role role) {
  switch (role) {
    case Role::Peer:
      return "peer";
    case Role::Submitter:
      return "submitter";
    case Role::Admin:
      return "admin";
    case Role::Caller:
      return "caller";
  }
  return "unknown";
}

Result<Role> parse_role(std::string_view text) {
  if (text == "peer") return Role::Peer;
  if (text == "submitter") return Role::Submitter;
  if (text == "admin") return Role::Admin;
  if (text == "caller") return Role::Caller;
  return fail(ErrorCode::InvalidArgument, "role '" + std::string(text.substr(0, 32)) +
                                              "': there are `peer`, `submitter`, `caller` and `admin`");
}

Token make_token(Role role, const PeerId& broker) {
  Token token{.role = role, .broker = broker};
  std::array<uint8_t, 8> id;
  fill_random(id);
  std::memcpy(&token.id, id.data(), id.size());
  fill_random(token.secret.bytes);
  return token;
}

Result<Token> derive_token(Role role, const Identity& broker, uint32_t number) {
  Token token{.role = role, .broker = broker.id()};
  std::array<uint8_t, sizeof(token.id) + sizeof(token.secret.bytes)> derived{};
  WEFT_TRY_STATUS(broker.derive(
      "weft lasting token " + std::string(to_string(role)) + " " + std::to_string(number), derived));
  for (size_t i = 0; i < sizeof(token.id); ++i) token.id = token.id << 8 | derived[i];
  std::copy(derived.begin() + sizeof(token.id), derived.end(), token.secret.bytes.begin());
  OPENSSL_cleanse(derived.data(), derived.size());
  return token;
}

std::string to_text(const Token& token) {
  TokenBytes bytes{};
  uint8_t* at = bytes.data();
  *at++ = static_cast<uint8_t>(token.role);
  at = std::copy(token.broker.digest.bytes.begin(), token.broker.digest.bytes.end(), at);
  for (int shift = 56; shift >= 0; shift -= 8) *at++ = static_cast<uint8_t>(token.id >> shift);
  at = std::copy(token.secret.bytes.begin(), token.secret.bytes.end(), at);
  const Digest digest = sha256(std::span(bytes).first(kBodySize));
  std::copy_n(digest.bytes.begin(), kChecksumSize, at);
  return std::string(kPrefix) + base32(bytes);
}

Result<Token> parse_token(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  std::string prefix(text.substr(0, 12));
  std::transform(prefix.begin(), prefix.end(), prefix.begin(), lower);
  if (has_other_version(prefix))
    return fail(ErrorCode::VersionMismatch,
                "token: its format is '" + prefix.substr(0, prefix.find('-')) +
                    "' and this weft reads 'weft1'; use the version of weft that the broker runs");
  if (!prefix.starts_with(kPrefix)) return invalid("it does not begin with '" + std::string(kPrefix) + "'");
  text.remove_prefix(kPrefix.size());
  if (text.size() != kTextSize)
    return invalid("it has " + std::to_string(text.size()) + " characters after '" + std::string(kPrefix) +
                   "' and not " + std::to_string(kTextSize));
  WEFT_TRY(const TokenBytes bytes, from_base32(text));
  const Digest digest = sha256(std::span(bytes).first(kBodySize));
  if (!std::equal(bytes.begin() + kBodySize, bytes.end(), digest.bytes.begin()))
    return invalid("its checksum does not match, a character is wrong");
  Token token;
  const uint8_t* at = bytes.data();
  if (*at < static_cast<uint8_t>(Role::Peer) || *at > static_cast<uint8_t>(Role::Caller))
    return invalid("it is for a role that this weft does not know");
  token.role = static_cast<Role>(*at++);
  std::copy_n(at, 32, token.broker.digest.bytes.begin());
  at += 32;
  for (int i = 0; i < 8; ++i) token.id = token.id << 8 | *at++;
  std::copy_n(at, 16, token.secret.bytes.begin());
  return token;
}

Digest secret_digest(const TokenSecret& secret) {
  constexpr std::string_view kPurpose = "weft token secret";
  std::array<uint8_t, kPurpose.size() + 16> bytes{};
  std::copy(kPurpose.begin(), kPurpose.end(), bytes.begin());
  std::copy(secret.bytes.begin(), secret.bytes.end(), bytes.begin() + kPurpose.size());
  const Digest digest = sha256(bytes);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return digest;
}

bool equal_in_constant_time(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
}

}  // namespace weft::security
