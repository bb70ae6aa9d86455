// The device that a peer offers: what --device says, the backend that computes on it, and how fast it is.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "configs/catalogue.h"
#include "peer/backend/backend.h"
#include "plan/device.h"
#include "proto/messages.h"

namespace weft::cli {

struct Device {
  std::string text;                                   // as given: "cpu", "cpu:2", "cuda:1", "null:rtx3080/8"
  int threads = 0;                                    // of a processor; 0: as many as this process may use
  std::optional<int> cuda;                            // which GPU
  std::optional<configs::CatalogueDevice> catalogue;  // of a null device
  int slower = 1;                                     // a null device: how many times than the catalogue's
};
// InvalidArgument, and NotFound for a type that the catalogue lacks.
Result<Device> parse_device(const std::string& text);

Result<std::unique_ptr<peer::Backend>> make_backend(const Device& device);

// What an owner offers; nothing: a share of what is free.
struct OfferedMemory {
  std::optional<Bytes> device;
  std::optional<Bytes> host;  // beside the memory of a GPU: for copies of the state
  double share = 0.8;         // of what is free
};
// What the peer says of itself: its rates measured here (a few seconds), or the catalogue's. DeviceLost after
// five minutes: a thread then still waits for the device.
Result<proto::DeviceReport> describe(const Device& device, const OfferedMemory& offered);

// What this process could still take of the machine's memory, its control group's limits included; and a
// share of that.
Bytes available_memory();
Bytes available_memory(double share);

}  // namespace weft::cli
