// What is kept of a request whose tokens come from elsewhere, and what another place is told of it.
#include "broker/service/remote_request.h"

#include <gtest/gtest.h>

#include "broker/service/remote_figures.h"

namespace weft::broker {
namespace {

RemoteRequest request_of(std::vector<int64_t> prompt, int64_t tokens_max) {
  RemoteRequest open;
  open.id = 3;
  open.number = 8;
  open.tokens = prompt;
  open.tokens_max = tokens_max;
  open.request = {.prompt = std::move(prompt),
                  .tokens_max = tokens_max,
                  .sampling = {.temperature = 0.5, .top_k = 4, .seed = 77},
                  .ends = {9}};
  return open;
}

TEST(RemoteRequest, AnotherPlaceGoesOnBehindEveryTokenThatIsKnown) {
  RemoteRequest open = request_of({1, 2}, 3);
  EXPECT_EQ(open.message().tokens, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(open.message().tokens_max, 3u);
  EXPECT_FALSE(open.message().alternatives);
  open.request.sampling.alternatives = 0;
  EXPECT_EQ(open.message().alternatives, 0u);
  for (const int64_t token : {5, 6}) open.add_token(token);
  const proto::ServeRequest message = open.message();
  EXPECT_EQ(message.request, 8u);
  EXPECT_EQ(message.tokens, (std::vector<int64_t>{1, 2, 5, 6}));
  EXPECT_EQ(message.tokens_max, 1u) << "what is left of them";
  EXPECT_EQ(message.seed, 77u);
  EXPECT_EQ(message.ends, (std::vector<int64_t>{9}));
  EXPECT_FALSE(open.is_full());
  open.add_token(7);
  EXPECT_TRUE(open.is_full());
}

TEST(RemoteRequest, ALossCountsWhereItWasThere) {
  RemoteRequest open = request_of({1}, 5);
  open.lose_place();
  EXPECT_EQ(open.losses, 0) << "it waited";
  open.is_at_entry = open.has_gap = true;
  open.tries = 4;
  open.lose_place();
  EXPECT_EQ(open.losses, 1);
  EXPECT_FALSE(open.is_at_entry || open.has_gap);
  EXPECT_EQ(open.tries, 0);
  EXPECT_EQ(open.spoilt, 0);
  open.spoilt_since = Instant{};
  open.lose_place();
  EXPECT_EQ(open.spoilt, 1);
  EXPECT_EQ(open.losses, 1) << "it was with nobody";
  open.gaps = 2;
  open.renumber(12);
  EXPECT_EQ(open.number, 12u);
  EXPECT_EQ(open.gaps, 0);
  open.add_token(3);
  EXPECT_EQ(open.losses, 0) << "somebody has computed it";
}

TEST(RemoteFigures, OfNoRequestThereIsNoLoad) {
  RemoteFigures figures("m");
  proto::ServeProgress progress;
  progress.load = proto::ServeLoad{.positions = 64, .under_way = 3, .passes = 5, .rows = 9};
  figures.count_progress(progress);
  const auto value = [&](const RemoteFigures::Now& now, const char* name) {
    return figures.metrics(now).value(name, {{"model", "m"}});
  };
  const RemoteFigures::Now busy{.open = 2, .at_entry = 1, .positions_max = 128};
  EXPECT_EQ(value(busy, "weft_serve_cache_positions"), 64);
  EXPECT_EQ(value(busy, "weft_serve_requests_waiting"), 1);
  EXPECT_EQ(value(busy, "weft_serve_placed"), 1);
  EXPECT_EQ(value({}, "weft_serve_cache_positions"), 0);
  EXPECT_EQ(value({}, "weft_serve_placed"), 0);
  EXPECT_EQ(value({}, "weft_serve_passes_total"), 5);
}

}  // namespace
}  // namespace weft::broker
