// Retention by hand: what jobs that ended long ago left goes, of a broker that does not run. One that runs
// does it by itself (BrokerServiceOptions::keep).
#pragma once

#include <filesystem>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "proto/hello.h"

namespace weft::broker {

struct Collected {
  std::vector<proto::JobNumber> jobs{};  // that are forgotten
  Bytes freed{};                         // of blobs
  Bytes left{};
};
// Jobs that ended longer ago than `keep`, and then blobs that nothing names any more. The jobs go in one
// transaction, and blobs after it: whoever is interrupted in between calls again. `tries`: nothing is done,
// only said. Errors: Unavailable, a broker runs there and it is no try; NotFound, there is none; what store
// and disk say.
Result<Collected> collect_ended(const std::filesystem::path& data_dir, Duration keep, bool tries);

}  // namespace weft::broker
