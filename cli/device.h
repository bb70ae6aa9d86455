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
  std::string text;                                   // as given: "cpu", "cpu:2", "cuda:1", "null:rtx3080"
  int threads = 0;                                    // of a processor; 0: as many as this process may use
  std::optional<int> cuda;                            // which GPU
  std::optional<configs::CatalogueDevice> catalogue;  // of a null device
};
// InvalidArgument, and NotFound for a type that the catalogue lacks.
Result<Device> parse_device(const std::string& text);

Result<std::unique_ptr<peer::Backend>> make_backend(const Device& device);

// What the peer says of itself: its rates measured here (a few seconds), or the catalogue's. `memory`: what
// its owner offers; nothing: most of what is free.
Result<proto::DeviceReport> describe(const Device& device, std::optional<Bytes> memory);

// What this process could still take of the machine's memory, its control group's limits included.
Bytes available_memory();

}  // namespace weft::cli
