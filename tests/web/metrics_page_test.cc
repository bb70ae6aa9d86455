#include "web/metrics_page.h"

#include <gtest/gtest.h>

#include "tests/web/client.h"

namespace weft::web::test {
namespace {

std::string from(std::string_view host, std::string_view path = "/metrics", std::string_view method = "GET") {
  return std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: " + std::string(host) +
         "\r\n\r\n";
}

class MetricsPageTest : public ::testing::Test {
 protected:
  MetricsPageTest() {
    Metrics metrics;
    metrics.declare_gauge("weft_idle", "Nothing.");
    metrics.set("weft_idle", 1, {{"name", "a \"b\"\n"}});
    latest_->set(std::move(metrics));
  }
  std::shared_ptr<LatestMetrics> latest_ = std::make_shared<LatestMetrics>();
  std::unique_ptr<Server> server_ = std::move(*serve_metrics({"127.0.0.1", 0}, latest_));
};

TEST_F(MetricsPageTest, SaysWhatWasCountedLast) {
  const Reply reply = ask(server_->endpoint(), from("127.0.0.1:7790"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(reply.body,
            "# HELP weft_idle Nothing.\n# TYPE weft_idle gauge\nweft_idle{name=\"a \\\"b\\\"\\n\"} 1\n");
  latest_->set({});
  EXPECT_EQ(ask(server_->endpoint(), from("localhost")).body, "");
}

TEST_F(MetricsPageTest, HasOnePage) {
  EXPECT_EQ(ask(server_->endpoint(), from("localhost", "/")).status, 404);
  EXPECT_EQ(ask(server_->endpoint(), from("localhost", "/metrics", "DELETE")).status, 405);
  EXPECT_EQ(ask(server_->endpoint(), from("localhost", "/metrics", "HEAD")).status, 200);
}

// A page in a browser whose name was made to lead to this machine.
TEST_F(MetricsPageTest, OnLoopbackItIsForThisMachineAlone) {
  for (const char* host : {"evil.example", "evil.example:7790", "localhost.evil.example", "[evil]", "[", ""})
    EXPECT_EQ(ask(server_->endpoint(), from(host)).status, 403) << host;
  for (const char* host : {"LOCALHOST:1", "[::1]:7790", "127.0.0.2", "[::1]"})
    EXPECT_EQ(ask(server_->endpoint(), from(host)).status, 200) << host;
}

}  // namespace
}  // namespace weft::web::test
