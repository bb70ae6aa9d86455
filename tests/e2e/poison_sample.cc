// weft_poison_sample DATA.npz COLUMN SAMPLE VALUE: what tests/e2e/diverge.sh trains on.
#include <cstdio>
#include <cstdlib>

#include "tests/support/poison.h"

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: weft_poison_sample DATA.npz COLUMN SAMPLE VALUE\n");
    return 2;
  }
  const weft::Status done = weft::test::poison_sample(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10),
                                                      std::strtof(argv[4], nullptr));
  if (done) return 0;
  std::fprintf(stderr, "weft_poison_sample: %s\n", done.error().message.c_str());
  return 1;
}
