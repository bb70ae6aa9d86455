#include "tests/web/fake_service.h"

#include <algorithm>
#include <sstream>

namespace weft::web::test {

namespace {

std::string prompt_of(const GenerateRequest& request) {
  if (const auto* text = std::get_if<std::string>(&request.prompt)) return *text;
  if (const auto* messages = std::get_if<std::vector<ChatMessage>>(&request.prompt))
    return messages->back().content;
  return "count " + std::to_string(std::get<std::vector<uint32_t>>(request.prompt).size());
}

std::vector<std::string> words_of(const std::string& prompt) {
  std::vector<std::string> words;
  std::istringstream in(prompt);
  for (std::string word; in >> word;) words.push_back(word);
  if (words.size() != 2 || words[0] != "count") return words;
  const int count = std::atoi(words[1].c_str());
  words.clear();
  for (int i = 1; i <= count; ++i) words.push_back(std::to_string(i));
  return words;
}

}  // namespace

// Whole from the beginning; who follows it is told piece by piece.
struct FakeService::Answer {
  Generation generation;
  std::vector<Piece> pieces;
  GenerationEnd end;
  std::optional<ApiError> error;
  bool hangs = false;
};

class FakeService::Followed final : public OpenRequest {
 public:
  explicit Followed(FakeService& service) : service_(service) {}
  void cancel() override {
    const std::lock_guard lock(service_.mutex_);
    if (!std::exchange(is_cancelled, true)) ++service_.cancelled_;
    service_.changed_.notify_all();
  }
  bool is_cancelled = false;

 private:
  FakeService& service_;
};

FakeService::FakeService() = default;
FakeService::~FakeService() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  threads_.clear();
}

std::shared_ptr<OpenRequest> FakeService::start(GenerateRequest request, std::shared_ptr<Sink> sink) {
  const auto answer = std::make_shared<Answer>();
  const std::string prompt = prompt_of(request);
  const bool breaks = prompt == "break";
  answer->hangs = prompt == "hang";
  std::vector<std::string> words = words_of(answer->hangs ? "count 3" : prompt);
  const size_t wanted = words.size();
  if (const auto stop = std::ranges::find_if(
          words,
          [&](const auto& word) { return std::ranges::find(request.stop, word) != request.stop.end(); });
      stop != words.end())
    words.erase(stop, words.end());
  if (request.max_tokens && words.size() > *request.max_tokens) {
    words.resize(*request.max_tokens);
    answer->end.reason = FinishReason::Length;
  }
  for (size_t i = 0; i < words.size(); ++i) {
    Piece piece{.text = (i == 0 ? "" : " ") + words[i]};
    if (request.logprobs) piece.logprobs = {{.token = piece.text, .logprob = -static_cast<double>(i + 1)}};
    answer->pieces.push_back(std::move(piece));
  }
  answer->end.usage = {.prompt_tokens = wanted, .completion_tokens = words.size()};
  if (prompt == "fail")
    answer->error = to_api_error({ErrorCode::ResourceExhausted, "all caches are full"});
  else if (breaks)
    answer->error = to_api_error({ErrorCode::Unavailable, "stage 2 has no peer"});
  if (prompt == "fail") answer->pieces.clear();
  {
    const std::lock_guard lock(mutex_);
    last_request_ = request;
    answer->generation = {.id = "fake-" + std::to_string(answers_.size()),
                          .created = 1700000000,
                          .model = request.model,
                          .system_fingerprint = "fp-fake",
                          .kind = request.kind,
                          .includes_usage = request.includes_usage};
    answers_.push_back(answer);
  }
  return follow(answer, std::move(sink));
}

std::shared_ptr<OpenRequest> FakeService::resume(const std::string& id, std::shared_ptr<Sink> sink) {
  std::shared_ptr<Answer> found;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& answer : answers_)
      if (answer->generation.id == id) found = answer;
  }
  if (found) return follow(std::move(found), std::move(sink));
  sink->on_error({.status = 404, .code = "stream_not_found", .message = "there is no stream " + id});
  return nullptr;
}

std::shared_ptr<OpenRequest> FakeService::follow(std::shared_ptr<Answer> answer, std::shared_ptr<Sink> sink) {
  const auto followed = std::make_shared<Followed>(*this);
  const std::lock_guard lock(mutex_);
  threads_.emplace_back([this, answer = std::move(answer), followed, sink = std::move(sink)] {
    feed(answer, followed, *sink);
  });
  return followed;
}

void FakeService::feed(const std::shared_ptr<Answer>& answer, const std::shared_ptr<Followed>& followed,
                       Sink& sink) {
  if (answer->error && answer->pieces.empty()) return sink.on_error(*answer->error);
  sink.on_start(answer->generation);
  for (const Piece& piece : answer->pieces) {
    if (!sink.on_piece(piece)) return;
    const std::lock_guard lock(mutex_);
    ++tokens_;
  }
  if (answer->hangs) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return followed->is_cancelled || is_ending_; });
    return;
  }
  if (answer->error) return sink.on_error(*answer->error);
  sink.on_end(answer->end);
}

Metrics FakeService::metrics() const {
  const std::lock_guard lock(mutex_);
  Metrics metrics;
  metrics.declare_counter("weft_tokens_total", "Tokens that were given to sinks.");
  metrics.add("weft_tokens_total", static_cast<double>(tokens_));
  return metrics;
}

bool FakeService::waits_for_cancelled(size_t count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return cancelled_ >= count; });
}

GenerateRequest FakeService::last_request() const {
  const std::lock_guard lock(mutex_);
  return last_request_;
}

}  // namespace weft::web::test
