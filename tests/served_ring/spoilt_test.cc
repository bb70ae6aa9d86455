// Rows that are not finite: of one text, by the model itself, or of all, by a peer.
#include "tests/served_ring/ring.h"

namespace weft::served {
namespace {

constexpr int64_t kOverflows = 28;

// Prompts without that token, but for `of` that ends with it.
std::vector<proto::ServeRequest> requests_with(uint64_t seed, uint64_t count, std::optional<uint64_t> of) {
  Rng rng(seed, 3);
  std::vector<proto::ServeRequest> requests = random_requests(rng, count);
  for (proto::ServeRequest& request : requests) {
    for (int64_t& token : request.tokens) token %= kOverflows;
    request.ends.push_back(kOverflows);  // drawn, it ends a text
    if (request.request == of) request.tokens.push_back(kOverflows);
  }
  return requests;
}

TEST(SpoiltRows, ATextThatOverflowsEndsAlone) {
  const ServedModel model(3, kOverflows + 1, kOverflows);
  for (const uint64_t of : {1, 5}) {
    SCOPED_TRACE(of);
    Ring ring(model, 3);
    ring.assign();
    const auto requests = requests_with(of, 8, of);
    auto wanted = texts_of_one_machine(model, requests);
    EXPECT_EQ(wanted.at(of).end, proto::ServeEnd::Failed) << "alone, too";
    for (const proto::ServeRequest& request : requests) ring.ask(request);
    ASSERT_TRUE(ring.wait([&] { return ring.all_ended(); }))
        << (ring.failures.empty() ? "hangs" : ring.failures.front().error.message);
    EXPECT_TRUE(ring.failures.empty()) << "no peer is named";
    const Text& spoilt = ring.texts.at(of);
    EXPECT_EQ(spoilt.end, proto::ServeEnd::Failed);
    ASSERT_TRUE(spoilt.error.has_value());
    EXPECT_EQ(spoilt.error->code, ErrorCode::Corrupted) << spoilt.error->message;
    EXPECT_TRUE(spoilt.tokens.empty());
    for (const auto& [number, text] : ring.texts)
      if (number != of) {
        EXPECT_EQ(text, wanted.at(number)) << number;
      }
  }
}

// Of a request that came round before the next one ends as its own; a broker asks again for that
// (broker/service/remote_requests.h).
TEST(SpoiltRows, APeerThatSpoilsEverythingIsNamedAndReplaced) {
  const ServedModel model(3);
  for (const uint32_t seat : {1u, 2u}) {
    SCOPED_TRACE(seat);
    Ring ring(model, 3);
    ring.break_peer(seat);
    ring.assign();
    const auto requests = requests_with(seat, 8, {});
    const auto wanted = texts_of_one_machine(model, requests);
    for (const proto::ServeRequest& request : requests) ring.ask(request);
    ASSERT_FALSE(ring.wait([&] { return ring.all_ended(); }));
    ASSERT_FALSE(ring.failures.empty());
    EXPECT_EQ(ring.failures.front().unreachable, plan::Seat{seat}) << ring.failures.front().error.message;
    EXPECT_EQ(ring.failures.front().error.code, ErrorCode::Corrupted);
    EXPECT_FALSE(ring.failures.front().permanent);
    ring.failures.clear();
    ring.replace(seat);
    ring.assign(2);
    ring.ask_again();
    ASSERT_TRUE(ring.wait([&] { return ring.all_ended(); }))
        << (ring.failures.empty() ? "hangs" : ring.failures.front().error.message);
    size_t spoilt = 0;
    for (const auto& [number, text] : ring.texts) {
      if (text.end != proto::ServeEnd::Failed) {
        EXPECT_EQ(text, wanted.at(number)) << number;
        continue;
      }
      ++spoilt;
      EXPECT_TRUE(text.tokens.empty());
      EXPECT_EQ(text.error.value_or(Error{}).code, ErrorCode::Corrupted);
    }
    EXPECT_LE(spoilt, 1u);
  }
}

}  // namespace
}  // namespace weft::served
