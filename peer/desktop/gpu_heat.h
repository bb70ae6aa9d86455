// How hot the machine's NVIDIA GPUs are, by NVML: the driver's own library, opened where it is there. Nothing
// is linked, and a machine without it has no GPU of that kind.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "peer/manners/manners.h"

namespace weft::peer {

class GpuHeat {
 public:
  // Null: there is no such library, or no driver behind it.
  static std::unique_ptr<GpuHeat> open(const std::string& library = "libnvidia-ml.so.1");
  ~GpuHeat();
  GpuHeat(const GpuHeat&) = delete;
  GpuHeat& operator=(const GpuHeat&) = delete;

  std::optional<MannersReadings::Heat> hottest() const;  // nothing: none says

 private:
  struct Library;
  explicit GpuHeat(std::unique_ptr<Library> library);
  const std::unique_ptr<Library> library_;
};

}  // namespace weft::peer
