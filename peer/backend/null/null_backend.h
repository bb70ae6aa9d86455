// A backend that computes nothing and takes the time that a device of given rates would take: for measuring
// schedules and links on a machine with fewer cores than peers. Memory is counted against the device's, and
// every value reads as zero.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "peer/backend/backend.h"
#include "plan/device.h"

namespace weft::peer {

struct NullOptions {
  std::string type;  // "rtx3080": the fingerprint is "null:rtx3080"
  plan::Rates rates{};
  Bytes memory{};  // what may be allocated
  // Those of the backends that the job's other peers run, so that graphs are lowered alike.
  BackendTraits traits{};
  // Called where a caller waits for the device (synchronize, a download, a timer), on its thread, with the
  // time that what it waits for and nobody waited for yet would have taken. REQUIRED.
  std::function<void(Duration)> wait;
};

std::unique_ptr<Backend> make_null_backend(NullOptions options);

}  // namespace weft::peer
