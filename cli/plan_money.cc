#include "cli/plan_money.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "configs/catalogue.h"

namespace weft::cli {
namespace {

void add(std::optional<double>& sum, std::optional<double> usd) {
  if (sum && usd)
    *sum += *usd;
  else
    sum.reset();
}

std::string describe(const char* how, double an_hour, double samples_per_second) {
  return fmt::format("{} {} USD an hour, {} USD a million samples", how, format_usd(an_hour),
                     format_usd(per_million_samples(an_hour, samples_per_second)));
}

}  // namespace

Money money_of(const PlanCluster& cluster, const plan::Plan& plan) {
  Money money{.bought_an_hour = 0, .rented_an_hour = 0};
  for (const plan::StagePlan& stage : plan.stages)
    for (const uint32_t at : stage.devices) {
      const auto device = configs::find_device(at < cluster.types.size() ? cluster.types[at] : "");
      const auto usd = [&](const std::optional<configs::Price>& price) {
        return price ? std::optional(price->usd) : std::nullopt;
      };
      const auto price = device ? usd(device->price) : std::nullopt;
      add(money.bought_an_hour, price ? std::optional(*price / kHoursWrittenOff) : std::nullopt);
      add(money.rented_an_hour, device ? usd(device->rent) : std::nullopt);
    }
  return money;
}

double per_million_samples(double usd_an_hour, double samples_per_second) {
  return usd_an_hour / 3600 / std::max(1e-12, samples_per_second) * 1e6;
}

std::string format_usd(double usd) {
  if (usd >= 99.95) return fmt::format("{:.0f}", usd);
  const int decimals = usd > 0 ? std::clamp(2 - static_cast<int>(std::floor(std::log10(usd))), 0, 6) : 0;
  return fmt::format("{:.{}f}", usd, decimals);
}

std::string money_line(const Money& money, double samples_per_second) {
  std::string text;
  if (money.bought_an_hour) text = describe("bought", *money.bought_an_hour, samples_per_second);
  if (money.rented_an_hour)
    text += (text.empty() ? "" : "; ") + describe("rented", *money.rented_an_hour, samples_per_second);
  return text;
}

}  // namespace weft::cli
