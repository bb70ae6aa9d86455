// A peer of the ring is gone, and another takes its stage: the others keep what they have, and the texts are
// those of one machine.
#include "tests/served_ring/ring.h"

namespace weft::served {
namespace {

void expect_equal(const std::map<uint64_t, Text>& texts, const std::map<uint64_t, Text>& wanted) {
  ASSERT_EQ(texts.size(), wanted.size());
  for (const auto& [number, text] : texts) {
    EXPECT_FALSE(text.error.has_value()) << text.error->message;
    EXPECT_TRUE(text == wanted.at(number)) << "request " << number << ": " << text.tokens.size()
                                           << " tokens, " << wanted.at(number).tokens.size() << " wanted";
  }
}

std::vector<proto::ServeRequest> long_requests(Rng& rng, uint64_t count) {
  auto requests = random_requests(rng, count);
  for (auto& request : requests) {
    request.ends.clear();
    request.tokens_max = 96 - request.tokens.size();
  }
  return requests;
}

class Failover : public ::testing::Test {
 protected:
  // Of a ring of so many peers these go, one after the other, while texts are drawn.
  void expect_texts(uint32_t stages, const std::vector<uint32_t>& seats) {
    const uint64_t seed = 20261127 + stages;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    const ServedModel model;
    const auto requests = long_requests(rng, 8);
    const auto wanted = texts_of_one_machine(model, requests);
    Ring ring(model, stages);
    ring.assign();
    for (const auto& request : requests) ring.ask(request);
    proto::PlanVersion version = 1;
    for (const uint32_t seat : seats) {
      const uint64_t before = ring.tokens();
      ASSERT_TRUE(ring.wait([&] { return ring.tokens() > before + 10; }));
      EXPECT_FALSE(ring.all_ended());
      lose(ring, seat, ++version, stages);
    }
    ASSERT_TRUE(ring.wait([&] { return ring.all_ended(); }));
    expect_equal(ring.texts, wanted);
  }
  static void lose(Ring& ring, uint32_t seat, proto::PlanVersion version, uint32_t stages) {
    std::vector<size_t> given;
    std::vector<int> taken_over;
    for (uint32_t s = 0; s < stages; ++s) {
      given.push_back(ring.broker.given(ring.peer(s).id()));
      taken_over.push_back(ring.peer(s).taken_over());
    }
    ring.replace(seat);
    ring.assign(version);
    ring.ask_again();
    for (uint32_t s = 0; s < stages; ++s) {
      if (s == seat) continue;
      EXPECT_EQ(ring.peer(s).taken_over(), taken_over[s] + 1) << "seat " << s;
      EXPECT_EQ(ring.broker.given(ring.peer(s).id()), given[s]) << "seat " << s << " fetches again";
    }
  }
};

TEST_F(Failover, OfTheOnlyStageBesideTheEntry) { expect_texts(2, {1, 1}); }
TEST_F(Failover, OfTheStageBehindTheEntry) { expect_texts(3, {1}); }
TEST_F(Failover, OfTheLastStage) { expect_texts(3, {2}); }
TEST_F(Failover, OfOneAfterTheOther) { expect_texts(3, {2, 1, 2}); }
TEST_F(Failover, OfTheEntry) { expect_texts(3, {0}); }
TEST_F(Failover, OfTheEntryAndThenAnother) { expect_texts(3, {0, 2}); }

}  // namespace
}  // namespace weft::served
