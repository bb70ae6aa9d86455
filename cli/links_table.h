// What is believed of links, as a table for people: of up to 16 devices each with each, of more by site.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "plan/cluster.h"

namespace weft::cli {

// Bits a second as "8.0M", "100M", "1.2G"; without a limit "-".
std::string short_rate(double bytes_per_second);

// Rates in bits a second, then the time one way in ms. What nobody has measured, a guess, is marked with ~.
// `seconds_since`: by device, since a link of it was measured, nothing for never; empty: not told.
std::string links_table(const plan::ClusterView& cluster,
                        std::span<const std::optional<double>> seconds_since);

}  // namespace weft::cli
