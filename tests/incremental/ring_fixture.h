// What the tests of rings have in common: two models with stages to borrow, and requests at random.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "tests/incremental/compare.h"
#include "tests/incremental/forms.h"
#include "tests/incremental/ring_world.h"

namespace weft::incremental::testing {

inline constexpr int64_t kVocabulary = 29;

// A model of four layers: nine parts, the odd ones attend.
class RingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto backend = peer::make_cpu_backend({.threads = 1, .pin = false});
    ASSERT_TRUE(backend);
    backend_ = std::move(*backend);
    const std::vector<Form> forms{{.name = "learnt", .layers = 4},
                                  {.name = "shared keys",
                                   .positions = Positions::Halves,
                                   .heads = Heads::Expanded,
                                   .layers = 4,
                                   .shares_keys = true}};
    for (const Form& form : forms) {
      models_.push_back(std::make_unique<Model>(make_model(form)));
      const auto incremental = derive(*models_.back());
      ASSERT_TRUE(incremental) << incremental.error().message;
      pools_.push_back(std::make_unique<Pool>(*models_.back(), *incremental, *backend_));
    }
  }
  Pool& pool(size_t i = 0) { return *pools_[i]; }

  std::unique_ptr<peer::Backend> backend_;
  std::vector<std::unique_ptr<Model>> models_;
  std::vector<std::unique_ptr<Pool>> pools_;
};

inline serve::Request random_request(Rng& rng, int64_t tokens_max) {
  serve::Request request;
  for (uint64_t left = 1 + rng.below(40); left > 0; --left)
    request.prompt.push_back(static_cast<int64_t>(rng.below(kVocabulary)));
  request.tokens_max = 1 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(tokens_max)));
  request.sampling = {.temperature = 0.8, .top_p = 0.95, .seed = rng.next_u64(), .alternatives = kVocabulary};
  if (rng.below(4) == 0) request.ends = {static_cast<int64_t>(rng.below(kVocabulary))};
  return request;
}
inline std::vector<serve::Request> random_requests(Rng& rng, uint64_t count, int64_t tokens_max = 12) {
  std::vector<serve::Request> requests;
  while (requests.size() < count) requests.push_back(random_request(rng, tokens_max));
  return requests;
}

// Fails when it is told to.
class Failing final : public serve::Stage {
 public:
  using Ask = std::function<std::optional<ErrorCode>(size_t range)>;
  Failing(std::unique_ptr<serve::Stage> stage, Ask ask) : stage_(std::move(stage)), ask_(std::move(ask)) {}
  Result<serve::RowTensors> run(size_t range, std::span<const serve::PassPiece> pieces,
                                const serve::RowTensors& rows) override {
    if (const auto error = ask_(range)) return fail(*error, "planted");
    return stage_->run(range, pieces, rows);
  }
  void end(uint64_t sequence) override { stage_->end(sequence); }
  size_t sequences() const override { return stage_->sequences(); }
  Bytes bytes_of(int64_t positions) const override { return stage_->bytes_of(positions); }

 private:
  std::unique_ptr<serve::Stage> stage_;
  Ask ask_;
};

}  // namespace weft::incremental::testing
