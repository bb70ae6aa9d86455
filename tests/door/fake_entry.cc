#include "tests/door/fake_entry.h"

#include "base/rng.h"
#include "tests/serve/fake_decoder.h"

namespace weft::test {

std::unique_ptr<serve::Sequence> HashingDecoder::begin() { return std::make_unique<FakeSequence>(); }

Result<dag::Tensor> HashingDecoder::pass(std::span<const serve::Piece> pieces) {
  std::vector<float> logits;
  int64_t rows = 0;
  for (const serve::Piece& piece : pieces) {
    auto& sequence = static_cast<FakeSequence&>(*piece.sequence);
    sequence.append(piece.tokens);
    if (piece.logits == 0) continue;
    ++rows;
    uint64_t hash = 1469598103934665603u;
    for (const int64_t token : sequence.tokens) hash = (hash ^ static_cast<uint64_t>(token)) * 1099511628211u;
    Rng rng(hash, 7);
    for (int64_t token = 0; token < vocabulary_; ++token) {
      // Of bytes only those that are seen.
      const bool is_seen = vocabulary_ != 256 || (token >= ' ' && token < 127);
      logits.push_back(static_cast<float>(4 * rng.uniform()) - (is_seen ? 0.0f : 100.0f));
    }
  }
  return dag::make_tensor({rows, vocabulary_}, logits);
}

proto::ServeProgress FakeEntry::progress(uint64_t number, size_t first) const {
  return {.run = run_, .plan_version = plan_version_, .request = number, .first = first};
}

void FakeEntry::take(const proto::Message& message) {
  if (const auto* request = std::get_if<proto::ServeRequest>(&message)) {
    ++requests;
    taken.push_back(*request);
    run_ = request->run;
    plan_version_ = request->plan_version;
    const auto known = requests_.find(request->request);
    if (known == requests_.end())
      begin(*request);
    else
      tell_again(*request, known->second);
  } else if (const auto* cancel = std::get_if<proto::CancelRequest>(&message)) {
    ++cancelled;
    if (const auto known = requests_.find(cancel->request); known != requests_.end())
      engine_.cancel(known->second.engine_id);
  }
}

void FakeEntry::begin(const proto::ServeRequest& request) {
  const uint64_t number = request.request;
  Told& known = requests_[number];
  known.begin = request.tokens.size();
  serve::Listener listener;
  listener.on_token = [this, number](const serve::Generated& generated) {
    const proto::ServedToken token{.token = generated.draw.token,
                                   .log_probability = generated.draw.log_probability,
                                   .alternatives = generated.draw.alternatives};
    requests_[number].drawn.push_back(token);
    told_.push_back(progress(number, static_cast<size_t>(generated.position)));
    told_.back().tokens = {token};
    return true;
  };
  listener.on_end = [this, number](serve::Finish finish, const Status& status) {
    Told& ended = requests_[number];
    ended.end = static_cast<proto::ServeEnd>(finish);
    if (!status) ended.error = status.error();
    told_.push_back(progress(number, ended.begin + ended.drawn.size()));
    told_.back().end = ended.end;
    told_.back().error = ended.error;
  };
  const auto id =
      engine_.add({.prompt = request.tokens,
                   .tokens_max = static_cast<int64_t>(request.tokens_max),
                   .sampling = {.temperature = request.temperature,
                                .top_p = request.top_p,
                                .top_k = static_cast<int64_t>(request.top_k),
                                .seed = request.seed,
                                .alternatives = request.alternatives ? int64_t{*request.alternatives} : -1},
                   .ends = request.ends},
                  listener);
  if (!id) return listener.on_end(serve::Finish::Failed, fail(id.error()));
  known.engine_id = *id;
}

void FakeEntry::tell_again(const proto::ServeRequest& request, const Told& told) {
  const size_t first = std::max(request.tokens.size(), told.begin);
  proto::ServeProgress again = progress(request.request, first);
  for (size_t i = first - told.begin; i < told.drawn.size(); ++i) again.tokens.push_back(told.drawn[i]);
  again.end = told.end;
  again.error = told.error;
  if (!again.tokens.empty() || again.end) told_.push_back(std::move(again));
}

}  // namespace weft::test
