#include "tests/door/one_machine.h"

#include <gtest/gtest.h>

#include "serve/service/engine_thread.h"
#include "serve/service/text_service.h"
#include "tests/door/fake_entry.h"
#include "tests/web/client.h"

namespace weft::test {

std::string text_of_one_machine(web::GenerateRequest request, int64_t context) {
  class Collected final : public web::Sink {
   public:
    void on_start(const web::Generation&) override {}
    bool on_piece(const web::Piece& piece) override {
      text += piece.text;
      return true;
    }
    void on_end(const web::GenerationEnd&) override { ended.raise(); }
    void on_error(const web::ApiError& error) override {
      ADD_FAILURE() << error.message;
      ended.raise();
    }
    std::string text;
    web::test::Flag ended;
  };
  const auto sink = std::make_shared<Collected>();
  const auto service = std::make_shared<serve::TextService>(
      serve::TextModel{}, std::make_unique<serve::EngineThread>(
                              std::make_unique<HashingDecoder>(context, 256), serve::EngineOptions{}));
  const auto open = service->start(std::move(request), sink);
  EXPECT_TRUE(sink->ended.wait());
  return sink->text;
}

}  // namespace weft::test
