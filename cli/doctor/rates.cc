#include "cli/doctor/rates.h"

#include <algorithm>
#include <chrono>

#include "security/token.h"
#include "storage/sha256.h"

namespace weft::cli {
namespace {

constexpr size_t kSizeFirst = 64 << 10, kSizeMax = 16 << 20, kStep = 4;  // bytes
constexpr double kLongEnough = 0.4;                                      // seconds
constexpr double kTimeMin = 1e-6;

double seconds_of(const std::function<Status()>& work, Status& status) {
  const auto begin = std::chrono::steady_clock::now();
  status = work();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return took.count();
}

// A question of no weight: what each transfer takes besides.
double round_trip(Client& client, Status& status) {
  return seconds_of(
      [&]() -> Status {
        WEFT_TRY(const auto missing, client.missing({}));
        (void)missing;
        return {};
      },
      status);
}

// More and more bytes, until they take long enough to tell. `move` takes how many, and returns what came of
// it.
Result<double> climb(size_t first, double round_trip, const std::function<Status(size_t size)>& move) {
  double rate = 0;
  for (size_t size = first; size <= kSizeMax; size *= kStep) {
    Status status;
    const double took = seconds_of([&] { return move(size); }, status);
    if (!status) return fail(status.error());
    rate = static_cast<double>(size) / std::max(took - std::min(round_trip, took / 2), kTimeMin);
    if (took >= kLongEnough) break;
  }
  return rate;
}

struct Lent {
  Digest sha256{};
  size_t size = 0;
};

Result<Lent> lend_random(Client& client, size_t size, Duration deadline) {
  std::vector<std::byte> bytes(size);
  security::fill_random({reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()});
  const auto sha256 = digest_from_hex(storage::sha256_hex(bytes));
  if (!sha256) return fail(ErrorCode::Internal, "a digest that is none");
  WEFT_TRY_STATUS(client.lend(*sha256, bytes, deadline));
  return Lent{*sha256, size};
}

}  // namespace

MeasuredRates measure_rates(Client& client, Duration deadline) {
  Status status;
  const double empty = round_trip(client, status);
  if (!status) return {fail(status.error()), fail(status.error())};
  Lent lent;
  Result<double> up = climb(kSizeFirst, empty, [&](size_t size) -> Status {
    WEFT_TRY(lent, lend_random(client, size, deadline));
    return {};
  });
  if (!up) return {up, fail(ErrorCode::Cancelled, "there was nothing to fetch")};
  // The same bytes several times: a slow uplink says nothing of the downlink.
  Result<double> down = climb(lent.size, empty, [&](size_t size) {
    return client.get_back(lent.sha256, lent.size, size / lent.size, deadline);
  });
  return {std::move(up), std::move(down)};
}

}  // namespace weft::cli
