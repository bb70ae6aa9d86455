// A Service whose text is scripted by the prompt, for tests of the door and for clients of others. It has one
// model, "fake", and answers the last message, or the prompt, word by word:
//
//   "count N"   the words 1 to N
//   "hang"      three words, and then nothing until somebody cancels
//   "fail"      429 before it begins
//   "break"     one word, and then 503
//   else        the same words again
//
// max_tokens and stop are kept to; a word is a token; its logprob is minus its number.
#pragma once

#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "web/service.h"

namespace weft::web::test {

class FakeService final : public Service {
 public:
  FakeService();
  ~FakeService() override;

  std::vector<ModelInfo> models() const override { return {{.id = "fake", .created = 1700000000}}; }
  std::shared_ptr<OpenRequest> start(GenerateRequest request, std::shared_ptr<Sink> sink) override;
  std::shared_ptr<OpenRequest> resume(const std::string& id, std::shared_ptr<Sink> sink) override;
  Health health() const override { return {.is_well = is_well, .what = "scripted"}; }
  Metrics metrics() const override;

  // Waits until so many were cancelled; false: it did not happen.
  bool waits_for_cancelled(size_t count);
  GenerateRequest last_request() const;
  std::atomic<bool> is_well = true;

 private:
  struct Answer;
  class Followed;
  void feed(const std::shared_ptr<Answer>& answer, const std::shared_ptr<Followed>& followed, Sink& sink);
  std::shared_ptr<OpenRequest> follow(std::shared_ptr<Answer> answer, std::shared_ptr<Sink> sink);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Answer>> answers_;
  GenerateRequest last_request_;
  size_t cancelled_ = 0, tokens_ = 0;
  bool is_ending_ = false;
  std::list<std::jthread> threads_;
};

}  // namespace weft::web::test
