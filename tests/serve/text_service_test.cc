#include "serve/service/text_service.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "serve/service/engine_thread.h"
#include "tests/serve/fake_decoder.h"

namespace weft::serve {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

// What a caller hears. Waits for the end, or for a piece.
class Hearing final : public web::Sink {
 public:
  void on_start(const web::Generation& generation) override {
    const std::lock_guard lock(mutex_);
    generation_ = generation;
  }
  bool on_piece(const web::Piece& piece) override {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(piece);
    changed_.notify_all();
    return !is_gone_;
  }
  void on_end(const web::GenerationEnd& end) override {
    const std::lock_guard lock(mutex_);
    end_ = end;
    changed_.notify_all();
  }
  void on_error(const web::ApiError& error) override {
    const std::lock_guard lock(mutex_);
    error_ = error;
    changed_.notify_all();
  }

  void go() {
    const std::lock_guard lock(mutex_);
    is_gone_ = true;
  }
  bool wait_for_end() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return end_ || error_; });
  }
  bool wait_for_piece() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return !pieces_.empty(); });
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const web::Piece& piece : pieces_) all += piece.text;
    return all;
  }

  std::optional<web::Generation> generation_;
  std::vector<web::Piece> pieces_;
  std::optional<web::GenerationEnd> end_;
  std::optional<web::ApiError> error_;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_gone_ = false;
};

// A decoder that goes on with `text` behind any prompt of `prompt` bytes, over and over; it can be held.
class Reciting final : public test::FollowingDecoder {
 public:
  Reciting(std::string text, size_t prompt)
      : FollowingDecoder(4096, 256, [text = std::move(text), prompt](const std::vector<int64_t>& tokens) {
          return int64_t{static_cast<unsigned char>(text[(tokens.size() - prompt) % text.size()])};
        }) {}
};

struct Fixture {
  explicit Fixture(std::unique_ptr<Decoder> decoder, TextModel model = {})
      : service(std::make_shared<TextService>(
            named(std::move(model)), std::make_unique<EngineThread>(std::move(decoder), EngineOptions{}))) {}
  static TextModel named(TextModel model) {
    model.name = "reciting";
    model.fingerprint = "weft-test";
    return model;
  }
  std::shared_ptr<Hearing> ask(web::GenerateRequest request) {
    auto hearing = std::make_shared<Hearing>();
    opened = service->start(std::move(request), hearing);
    EXPECT_TRUE(hearing->wait_for_end());
    return hearing;
  }
  std::shared_ptr<TextService> service;
  std::shared_ptr<web::OpenRequest> opened;
};

web::GenerateRequest completion(std::string prompt, uint32_t max_tokens) {
  web::GenerateRequest request;
  request.model = "reciting";
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

TEST(TextService, SaysWhatTheModelGoesOnWith) {
  Fixture f(std::make_unique<Reciting>("the quick brown fox ", 3));
  const auto heard = f.ask(completion("abc", 9));
  EXPECT_EQ(heard->text(), "the quick");
  ASSERT_TRUE(heard->end_);
  EXPECT_EQ(heard->end_->reason, web::FinishReason::Length);
  EXPECT_EQ(heard->end_->usage.prompt_tokens, 3u);
  EXPECT_EQ(heard->end_->usage.completion_tokens, 9u);
  EXPECT_EQ(heard->generation_->system_fingerprint, "weft-test");
}

TEST(TextService, HoldsCharactersTogether) {
  Fixture f(std::make_unique<Reciting>("a\xc3\xa9\xe2\x82\xac", 1));
  const auto heard = f.ask(completion("x", 5));
  EXPECT_EQ(heard->text(), "a\xc3\xa9\xef\xbf\xbd");  // the last one is not whole
  for (const web::Piece& piece : heard->pieces_) EXPECT_NE(piece.text, "\xc3");
}

TEST(TextService, StopsBeforeAStopString) {
  Fixture f(std::make_unique<Reciting>("one two three ", 1));
  web::GenerateRequest request = completion("x", 100);
  request.stop = {"thr", " four"};
  const auto heard = f.ask(request);
  EXPECT_EQ(heard->text(), "one two ");
  EXPECT_EQ(heard->end_->reason, web::FinishReason::Stop);
}

TEST(TextService, TellsProbabilitiesBesideTheText) {
  Fixture f(std::make_unique<Reciting>("ab", 1));
  web::GenerateRequest request = completion("x", 2);
  request.logprobs = 1;
  const auto heard = f.ask(request);
  std::vector<std::string> tokens;
  for (const web::Piece& piece : heard->pieces_)
    for (const web::TokenLogprob& one : piece.logprobs) {
      tokens.push_back(one.token);
      EXPECT_NEAR(one.logprob, 0, 1e-6);
      ASSERT_EQ(one.top.size(), 1u);
    }
  EXPECT_EQ(tokens, (std::vector<std::string>{"a", "b"}));
}

TEST(TextService, ErrorsBeforeTheBeginningNameTheField) {
  Fixture f(std::make_unique<Reciting>("a", 1));
  const auto long_one = f.ask(completion("x", 5000));
  ASSERT_TRUE(long_one->error_);
  EXPECT_EQ(long_one->error_->status, 400);
  EXPECT_EQ(long_one->error_->param, "max_tokens");
  EXPECT_FALSE(long_one->generation_);
  const auto empty = f.ask(completion("", 1));
  EXPECT_EQ(empty->error_->param, "prompt");
  web::GenerateRequest chat;
  chat.kind = web::ApiKind::Chat;
  chat.prompt = std::vector<web::ChatMessage>{{.role = web::ChatMessage::Role::User, .content = "hi"}};
  EXPECT_EQ(f.ask(chat)->error_->param, "messages");
}

TEST(TextService, ChatsByItsTemplate) {
  TextModel model;
  model.chat_template = text::ChatTemplate::Plain;
  const size_t prompt = std::string("User: hi\nAssistant:").size();
  Fixture f(std::make_unique<Reciting>(" hello\nUser: and you?", prompt), std::move(model));
  web::GenerateRequest chat;
  chat.kind = web::ApiKind::Chat;
  chat.prompt = std::vector<web::ChatMessage>{{.role = web::ChatMessage::Role::User, .content = "hi"}};
  const auto heard = f.ask(chat);
  ASSERT_FALSE(heard->error_) << heard->error_->message;
  EXPECT_EQ(heard->text().substr(0, 6), " hello");
  EXPECT_EQ(heard->text().find("User:"), std::string::npos);
  EXPECT_EQ(heard->end_->reason, web::FinishReason::Stop);
}

TEST(TextService, AStreamIsReadAgainFromItsBeginning) {
  Fixture f(std::make_unique<Reciting>("0123456789", 1));
  web::GenerateRequest request = completion("x", 30);
  request.is_stream = true;
  const auto heard = f.ask(request);
  const auto again = std::make_shared<Hearing>();
  f.service->resume(heard->generation_->id, again);
  ASSERT_TRUE(again->wait_for_end());
  EXPECT_EQ(again->generation_->id, heard->generation_->id);
  ASSERT_EQ(again->pieces_.size(), heard->pieces_.size());
  EXPECT_EQ(again->text(), heard->text());
  const auto unknown = std::make_shared<Hearing>();
  f.service->resume("cmpl-nobody", unknown);
  EXPECT_EQ(unknown->error_->status, 404);
}

TEST(TextService, AStreamGoesOnWithoutItsCallerAndAWholeAnswerDoesNot) {
  Fixture f(std::make_unique<Reciting>("0123456789", 1));
  web::GenerateRequest request = completion("x", 400);
  request.is_stream = true;
  const auto left = std::make_shared<Hearing>();
  const auto open = f.service->start(request, left);
  ASSERT_TRUE(left->wait_for_piece());
  left->go();
  open->cancel();
  const auto back = std::make_shared<Hearing>();
  f.service->resume(left->generation_->id, back);
  ASSERT_TRUE(back->wait_for_end());
  EXPECT_EQ(back->text().size(), 400u);

  request.is_stream = false;
  request.max_tokens = 4000;
  const auto whole = std::make_shared<Hearing>();
  const auto open_whole = f.service->start(request, whole);
  ASSERT_TRUE(whole->wait_for_piece());
  open_whole->cancel();
  ASSERT_TRUE(whole->wait_for_end());
  EXPECT_EQ(f.service->metrics().value("weft_serve_requests_total", {{"finish", "length"}}), 1);
}

web::GenerateRequest under_key(const std::string& key, uint32_t max_tokens, const std::string& caller = "c") {
  web::GenerateRequest request = completion("x", max_tokens);
  request.once = {.caller = caller, .key = key, .asked = std::to_string(max_tokens)};
  return request;
}

TEST(TextService, UnderOneKeyThereIsOneAnswer) {
  Fixture f(std::make_unique<Reciting>("0123456789", 1));
  const auto first = f.ask(under_key("k", 30)), again = f.ask(under_key("k", 30));
  EXPECT_EQ(first->text().size(), 30u);
  EXPECT_EQ(again->text(), first->text());
  EXPECT_EQ(again->generation_->id, first->generation_->id);
  ASSERT_TRUE(again->end_.has_value());
  const auto other = f.ask(under_key("k", 31));
  ASSERT_TRUE(other->error_.has_value());
  EXPECT_EQ(other->error_->status, 409);
  EXPECT_EQ(other->error_->param, "Idempotency-Key");
  EXPECT_NE(f.ask(under_key("k", 30, "another"))->generation_->id, first->generation_->id)
      << "keys are a caller's own";
  EXPECT_NE(f.ask(under_key("l", 30))->generation_->id, first->generation_->id);
  EXPECT_EQ(f.service->metrics().value("weft_serve_requests_total", {{"finish", "length"}}), 3);
}

TEST(TextService, UnderAKeyAWholeAnswerGoesOnWithoutItsCaller) {
  Fixture f(std::make_unique<Reciting>("0123456789", 1));
  const auto left = std::make_shared<Hearing>();
  const auto open = f.service->start(under_key("k", 400), left);
  ASSERT_TRUE(left->wait_for_piece());
  left->go();
  open->cancel();
  const auto back = f.ask(under_key("k", 400));
  EXPECT_EQ(back->text().size(), 400u);
  EXPECT_EQ(back->generation_->id, left->generation_->id);
}

TEST(TextService, WhatWasRefusedUnderAKeyIsTriedAgain) {
  Fixture f(std::make_unique<Reciting>("a", 1));
  web::GenerateRequest large = completion(std::string(TextService::kPreparedBytesMax, 'x'), 1);
  large.once = {.caller = "c", .key = "k", .asked = "large"};
  EXPECT_EQ(f.ask(large)->error_->status, 429);
  web::GenerateRequest long_one = completion(std::string(5000, 'x'), 1);
  long_one.once = {.caller = "c", .key = "k", .asked = "long"};
  EXPECT_EQ(f.ask(long_one)->error_->status, 400);
  EXPECT_EQ(f.ask(under_key("k", 3))->text(), "aaa");
}

TEST(TextService, PromptsThatWaitAreBounded) {
  Fixture f(std::make_unique<Reciting>("a", 1));
  // More at once than may wait; the door lets no single prompt be so large.
  const auto large = f.ask(completion(std::string(TextService::kPreparedBytesMax, 'x'), 1));
  ASSERT_TRUE(large->error_);
  EXPECT_EQ(large->error_->status, 429);
  EXPECT_FALSE(large->generation_);
  // What has become tokens makes room again.
  const std::string half(TextService::kPreparedBytesMax / 2 + 1, 'x');
  for (int i = 0; i < 3; ++i) EXPECT_EQ(f.ask(completion(half, 1))->error_->param, "prompt");
  EXPECT_EQ(f.ask(completion("x", 1))->text(), "a");
}

TEST(TextService, IsWellWhileItWorksAndSaysWhenADeviceIsLost) {
  Fixture f(std::make_unique<Reciting>("a", 1));
  EXPECT_TRUE(f.service->health().is_well);
  class Lost final : public test::FollowingDecoder {
   public:
    Lost() : FollowingDecoder(64, 256, [](const auto&) { return 1; }) {}
    Result<dag::Tensor> pass(std::span<const Piece>) override {
      return fail(ErrorCode::DeviceLost, "the device fell off the bus");
    }
  };
  Fixture lost(std::make_unique<Lost>());
  const auto heard = lost.ask(completion("x", 3));
  EXPECT_EQ(heard->error_->status, 503);
  EXPECT_FALSE(lost.service->health().is_well);
  EXPECT_NE(lost.service->health().what.find("fell off the bus"), std::string::npos);
}

}  // namespace
}  // namespace weft::serve
