// weft_fuzz_seeds FOLDER: writes the seeds of each target into FOLDER/<target>/.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/seeds.h"
#include "tests/fuzz/targets.h"

namespace {

void write(const std::filesystem::path& folder, const char* target) {
  std::filesystem::create_directories(folder / target);
  for (weft::fuzz::Seed& seed : weft::fuzz::seeds_of(target)) {
    for (char& c : seed.name)
      if (c == '/' || c == ':') c = '_';
    std::ofstream(folder / target / ("seed_" + seed.name), std::ios::binary)
        .write(reinterpret_cast<const char*>(seed.bytes.data()),
               static_cast<std::streamsize>(seed.bytes.size()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
#define WEFT_FUZZ_WRITE(name) write(argv[1], #name);
  WEFT_FUZZ_TARGETS(WEFT_FUZZ_WRITE)
#undef WEFT_FUZZ_WRITE
}
