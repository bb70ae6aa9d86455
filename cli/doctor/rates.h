// How fast bytes go between here and a broker.
#pragma once

#include "base/result.h"
#include "base/units.h"
#include "cli/client.h"

namespace weft::cli {

struct MeasuredRates {
  Result<double> up, down;  // bytes a second, by the broker's port and its disk
};
// Lends the broker random bytes and fetches them: 64 KiB, then four times as many, until they take long
// enough to tell, at most 16 MiB. `deadline` of each. The broker forgets them within the hour.
MeasuredRates measure_rates(Client& client, Duration deadline);

}  // namespace weft::cli
