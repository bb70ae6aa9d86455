#include "cli/join_limits.h"

#include <fmt/format.h>
#include <unistd.h>

#include "cli/quantities.h"

namespace weft::cli {

Machine this_machine() {
  const long processors = ::sysconf(_SC_NPROCESSORS_ONLN), pages = ::sysconf(_SC_PHYS_PAGES),
             page = ::sysconf(_SC_PAGESIZE);
  Machine machine;
  if (processors > 0) machine.processors = static_cast<int>(processors);
  if (pages > 0 && page > 0) machine.memory.value = int64_t{pages} * page;
  return machine;
}

Status check_offer(const Device& device, const OfferedMemory& offered, const Machine& machine) {
  if (device.catalogue) return {};
  if (machine.processors > 0 && device.threads > machine.processors)
    return fail(
        ErrorCode::InvalidArgument,
        fmt::format("--device {}: this machine has {} processors, and more threads than that would wait "
                    "for each other: say cpu:{}, or cpu for all of them",
                    device.text, machine.processors, machine.processors));
  const auto check = [&](const char* option, const std::optional<Bytes>& bytes) -> Status {
    if (machine.memory.value == 0 || !bytes || *bytes <= machine.memory) return {};
    return fail(
        ErrorCode::InvalidArgument,
        fmt::format("{} {}: this machine has {} in all; leave the option out to offer most of what is free",
                    option, format_bytes(bytes->value), format_bytes(machine.memory.value)));
  };
  if (!device.cuda) WEFT_TRY_STATUS(check("--memory", offered.device));
  return check("--host-memory", offered.host);
}

}  // namespace weft::cli
