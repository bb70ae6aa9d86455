// Which addresses a program dials that somebody else named. Who says where to connect could otherwise use it
// as a hand inside its owner's network: to reach machines that only that network can, or a mail server under
// another's name. Pure; it judges addresses, not names: a name may be resolved to anything, and to something
// else the next time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weft::net {

// Of IPv6, in network order; one of IPv4 as ::ffff:a.b.c.d.
using IpAddress = std::array<uint8_t, 16>;
// No name; a scope (fe80::1%eth0) is left out.
std::optional<IpAddress> parse_ip(std::string_view text);

enum class AddressKind : uint8_t {
  Public,
  Private,   // of a network of its own: RFC 1918, unique local, link-local, carriers' (100.64/10)
  Loopback,  // this machine
  Nobody,    // not a machine: unspecified, multicast, broadcast, reserved
};
// An address that carries one of IPv4 (mapped, compatible, NAT64, 6to4) is of that one's kind.
AddressKind kind_of(const IpAddress& address);

// The furthest inside that whoever names addresses may point, from least to most.
enum class Reach : uint8_t { Public, Private, Loopback };
// By where it was reached itself: who is inside already learns nothing new there.
Reach reach_of(const IpAddress& who_names, bool is_this_machine);

// PermissionDenied: not an address of that reach, or a port below 1024, but for 443, where other services
// are.
Status check_dial(const IpAddress& address, uint16_t port, Reach reach);

// Whether an interface of this machine has the address. Asks the system.
bool is_own_address(const IpAddress& address);

}  // namespace weft::net
