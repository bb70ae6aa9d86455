// 32 bytes of SHA-256: the name of a blob, and of a public key. What computes them is above (storage,
// security).
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

struct Digest {
  std::array<uint8_t, 32> bytes{};
  auto operator<=>(const Digest&) const = default;
};
std::string to_hex(const Digest& digest);  // 64 lower-case digits
std::optional<Digest> digest_from_hex(std::string_view text);

// A peer, or a user's client: the SHA-256 of its public key (DER SubjectPublicKeyInfo). Never reused.
struct PeerId {
  Digest digest;
  auto operator<=>(const PeerId&) const = default;
};
std::string to_string(const PeerId& peer);  // the first 12 hexadecimal digits, for people

}  // namespace weft

template <>
struct std::hash<weft::Digest> {
  size_t operator()(const weft::Digest& digest) const noexcept {
    size_t value;  // a digest is as good as random everywhere
    std::memcpy(&value, digest.bytes.data(), sizeof(value));
    return value;
  }
};
template <>
struct std::hash<weft::PeerId> {
  size_t operator()(const weft::PeerId& peer) const noexcept {
    return std::hash<weft::Digest>()(peer.digest);
  }
};
