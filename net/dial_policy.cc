#include "net/dial_policy.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <cstring>

namespace weft::net {

namespace {

constexpr uint16_t kPortMin = 1024, kPortOfHttps = 443;

bool has_prefix(const uint8_t* address, const uint8_t* prefix, int bits) {
  if (std::memcmp(address, prefix, static_cast<size_t>(bits / 8)) != 0) return false;
  const int rest = bits % 8;
  return rest == 0 || ((address[bits / 8] ^ prefix[bits / 8]) >> (8 - rest)) == 0;
}

struct Range4 {
  std::array<uint8_t, 4> bytes;
  int bits;
  AddressKind kind;
};
// https://www.iana.org/assignments/iana-ipv4-special-registry, as far as it says where packets go.
constexpr Range4 kRanges4[] = {
    {{0, 0, 0, 0}, 8, AddressKind::Nobody},  // this network
    {{127, 0, 0, 0}, 8, AddressKind::Loopback},
    {{10, 0, 0, 0}, 8, AddressKind::Private},  // RFC 1918, three
    {{172, 16, 0, 0}, 12, AddressKind::Private},
    {{192, 168, 0, 0}, 16, AddressKind::Private},
    {{169, 254, 0, 0}, 16, AddressKind::Private},  // link-local: the clouds' metadata
    {{100, 64, 0, 0}, 10, AddressKind::Private},   // behind a carrier's NAT
    {{192, 0, 0, 0}, 24, AddressKind::Private},    // protocol assignments
    {{198, 18, 0, 0}, 15, AddressKind::Private},   // benchmarks of networks
    {{192, 88, 99, 0}, 24, AddressKind::Nobody},   // relays of 6to4, no more
    {{224, 0, 0, 0}, 4, AddressKind::Nobody},      // multicast
    {{240, 0, 0, 0}, 4, AddressKind::Nobody},      // reserved, broadcast
};

AddressKind kind_of_4(const uint8_t* address) {
  for (const Range4& range : kRanges4)
    if (has_prefix(address, range.bytes.data(), range.bits)) return range.kind;
  return AddressKind::Public;
}

// Of IPv6: where an address of IPv4 stands in it.
struct Carrier {
  IpAddress prefix;
  int bits;
  size_t at;
};
constexpr Carrier kCarriers[] = {
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF}, 96, 12},  // mapped
    {{0x00, 0x64, 0xFF, 0x9B}, 96, 12},                    // NAT64
    {{0x20, 0x02}, 16, 2},                                 // 6to4
    {{}, 96, 12},                                          // compatible: deprecated, and never ::1 or ::
};

struct Range6 {
  IpAddress prefix;
  int bits;
  AddressKind kind;
};
constexpr Range6 kRanges6[] = {
    {{}, 128, AddressKind::Nobody},                                                  // unspecified
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 128, AddressKind::Loopback},  // this machine
    {{0xFC}, 7, AddressKind::Private},                                               // unique local
    {{0xFE, 0x80}, 10, AddressKind::Private},                                        // link-local
    {{0xFE, 0xC0}, 10, AddressKind::Private},                                        // site-local, once
    {{0x00, 0x64, 0xFF, 0x9B, 0x00, 0x01}, 48, AddressKind::Private},                // NAT64 of a network
    {{0x20, 0x01, 0x00, 0x00}, 32, AddressKind::Nobody},                             // Teredo, no more
    {{0xFF}, 8, AddressKind::Nobody},                                                // multicast
};

std::string text_of(const IpAddress& address) {
  const bool is_four = has_prefix(address.data(), kCarriers[0].prefix.data(), 96);
  char text[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(is_four ? AF_INET : AF_INET6, address.data() + (is_four ? 12 : 0), text, sizeof text);
  return is_four ? text : "[" + std::string(text) + "]";
}

}  // namespace

std::optional<IpAddress> parse_ip(std::string_view text) {
  const std::string plain(text.substr(0, text.find('%')));
  IpAddress address{};
  if (::inet_pton(AF_INET6, plain.c_str(), address.data()) == 1) return address;
  address = kCarriers[0].prefix;
  if (::inet_pton(AF_INET, plain.c_str(), address.data() + 12) == 1) return address;
  return std::nullopt;
}

AddressKind kind_of(const IpAddress& address) {
  for (const Range6& range : kRanges6)
    if (has_prefix(address.data(), range.prefix.data(), range.bits)) return range.kind;
  for (const Carrier& carrier : kCarriers)
    if (has_prefix(address.data(), carrier.prefix.data(), carrier.bits))
      return kind_of_4(address.data() + carrier.at);
  return AddressKind::Public;
}

Reach reach_of(const IpAddress& who_names, bool is_this_machine) {
  const AddressKind kind = kind_of(who_names);
  if (is_this_machine || kind == AddressKind::Loopback) return Reach::Loopback;
  return kind == AddressKind::Private ? Reach::Private : Reach::Public;
}

Status check_dial(const IpAddress& address, uint16_t port, Reach reach) {
  const auto refused = [&](const std::string& why) {
    return fail(ErrorCode::PermissionDenied,
                text_of(address) + ":" + std::to_string(port) + " is not dialled: " + why);
  };
  switch (kind_of(address)) {
    case AddressKind::Nobody:
      return refused("it is no machine's address");
    case AddressKind::Loopback:
      if (reach < Reach::Loopback) return refused("it is this machine, where the broker is not");
      break;
    case AddressKind::Private:
      if (reach < Reach::Private) return refused("it is of a private network, where the broker is not");
      break;
    case AddressKind::Public:
      break;
  }
  if (port < kPortMin && port != kPortOfHttps) return refused("ports below 1024 are other services'");
  return {};
}

bool is_own_address(const IpAddress& address) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* one = all; one != nullptr && !found; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    IpAddress own = kCarriers[0].prefix;
    if (one->ifa_addr->sa_family == AF_INET)
      std::memcpy(own.data() + 12, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, 4);
    else if (one->ifa_addr->sa_family == AF_INET6)
      std::memcpy(own.data(), &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr, own.size());
    else
      continue;
    found = own == address;
  }
  ::freeifaddrs(all);
  return found;
}

}  // namespace weft::net
