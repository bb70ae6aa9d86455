// What the devices of a plan cost while it runs, where the catalogue knows: bought, the price written off
// evenly over three years of every hour; rented, what an hour costs on demand. Nothing for power, lines or
// people; devices that the plan leaves idle cost nothing.
#pragma once

#include <optional>
#include <string>

#include "cli/plan_cluster.h"
#include "plan/plan.h"

namespace weft::cli {

inline constexpr double kHoursWrittenOff = 3 * 365 * 24;

// US dollars; nothing where one of the devices has no such figure.
struct Money {
  std::optional<double> bought_an_hour, rented_an_hour;
};
Money money_of(const PlanCluster& cluster, const plan::Plan& plan);

double per_million_samples(double usd_an_hour, double samples_per_second);

// "1.33", "0.027": three digits that count.
std::string format_usd(double usd);
// "bought 1.33 USD an hour, 2.10 USD a million samples; rented ..."; empty: nothing is known.
std::string money_line(const Money& money, double samples_per_second);

}  // namespace weft::cli
