#include "configs/cluster.h"

#include "base/check.h"
#include "configs/catalogue.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

void cluster_file(std::span<const std::byte> bytes) {
  const std::string_view text = as_text(bytes);
  (void)configs::parse_catalogue(text, "devices.yaml");
  const auto cluster = configs::parse_cluster(text);
  if (!cluster) {
    WEFT_CHECK(!cluster.error().message.empty());
    return;
  }
  if (cluster->devices.size() <= 64) (void)configs::view(*cluster);  // a figure for each pair
}

}  // namespace weft::fuzz
