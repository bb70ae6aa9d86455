// The door with the scripted service behind it, as a program for clients of others: prints where it listens,
// serves until its input ends, and then says what was cancelled.
//
//   weft_web_fake_server [--tls FOLDER] [--token TOKEN]
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/web/certificate.h"
#include "tests/web/fake_service.h"
#include "web/api.h"

int main(int argc, char** argv) {
  using namespace weft::web;
  ServerOptions options;
  ApiOptions api;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--tls") == 0) {
      const auto files = test::write_certificate(argv[i + 1]);
      options.certificate_file = files.certificate;
      options.key_file = files.key;
    } else if (std::strcmp(argv[i], "--token") == 0) {
      api.authorize = [token = std::string(argv[i + 1])](std::string_view shown, Access) {
        return shown == token ? Verdict::Allowed : Verdict::Unknown;
      };
    }
  }
  const auto service = std::make_shared<test::FakeService>();
  auto server = Server::start(options, make_api(service, api));
  if (!server) {
    std::fprintf(stderr, "%s\n", server.error().message.c_str());
    return 1;
  }
  const bool has_tls = !options.certificate_file.empty();
  std::printf("http%s://localhost:%u/v1\n", has_tls ? "s" : "", (*server)->endpoint().port);
  std::fflush(stdout);
  // "cancelled N" waits for that many; the answer is a line.
  char line[64];
  while (std::fgets(line, sizeof(line), stdin) != nullptr) {
    size_t count = 0;
    if (std::sscanf(line, "cancelled %zu", &count) == 1)
      std::printf("%s\n", service->waits_for_cancelled(count) ? "yes" : "no");
    std::fflush(stdout);
  }
  (*server)->stop(std::chrono::seconds(1));
  return 0;
}
