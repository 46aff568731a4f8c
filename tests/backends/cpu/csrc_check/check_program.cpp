// Programs: commands give what their kernels give, and one that fails says which it was and stops the program.
#include "check.h"
#include "codes_of_commands.h" // made from CODES of program.py
#include "kernels.h"
#include "weight_rows.h"

namespace {

enum Kind : int32_t { NUMBER, SIZE, ADDRESS };

struct Program {
    std::vector<Command> commands;
    std::vector<Argument> arguments;
    std::vector<int64_t> slots, sizes;
    int64_t failure = 0;

    void add(int32_t code, const std::vector<Argument> &given) {
        commands.push_back({code, static_cast<int32_t>(arguments.size()), static_cast<int32_t>(given.size())});
        arguments.insert(arguments.end(), given.begin(), given.end());
    }
    Argument at(const void *memory, int64_t bytes = 0) {
        slots.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory)) - 64);
        return {bytes + 64, ADDRESS, static_cast<int32_t>(slots.size() - 1)};
    }
    Argument size(int64_t n) { // as a size of half of it times two, where it is even
        sizes.push_back(n % 2 ? n : n / 2);
        return {n % 2 ? 1 : 2, SIZE, static_cast<int32_t>(sizes.size() - 1)};
    }
    int64_t run(int64_t *stamps = nullptr) {
        return xh_run(commands.data(), static_cast<int64_t>(commands.size()), arguments.data(), sizes.data(),
                      slots.data(), &failure, stamps);
    }
};

Argument number(int64_t n) { return {n, NUMBER, 0}; }
Argument real(double x) {
    int64_t bits;
    std::memcpy(&bits, &x, 8);
    return number(bits);
}

// Rows of x by index into y.
void gather(Program &p, const float *x, int64_t rows, int64_t width, const int32_t *ids, int64_t count, float *y) {
    const Argument bytes = number(width * 4);
    p.add(gather_rows, {p.at(x), p.at(ids), p.size(count), number(rows), bytes, bytes, p.at(y)});
}

void add_norm(Program &p, const float *x, int64_t rows, int64_t width, const float *weight, float *y) {
    p.add(norm, {p.at(x), number(FLOAT32), p.size(rows), number(1), number(width), number(0), number(width),
                 p.at(weight), number(FLOAT32), real(1e-6), p.at(y)});
}

void doubled(Program &p, const float *x, int64_t rows, int64_t width, float *y) {
    p.add(elementwise, {number(ADD), p.size(rows), number(width), p.at(x), number(width), number(1), number(FLOAT32),
                        p.at(x), number(width), number(1), number(FLOAT32), number(FLOAT32), p.at(y)});
}

// Rows looked up, normed, multiplied with tiles, doubled: again and again, in one call and call by call.
void a_chain(Check &check, int64_t tokens) {
    Random random;
    const int64_t width = 512, rows = 64, hidden = 160;
    const WeightRows w = random_rows("q4_0", hidden, width, random);
    const int32_t source = xh_tile_source("q4_0");
    std::vector<uint8_t> packed(static_cast<size_t>(xh_tiles_bytes(source, hidden, width) + 8192));
    xh_pack_tiles(source, w.data.data(), w.row_bytes, hidden, width, packed.data());
    const Tiles tiles{xh_tile_format(source), 0, hidden, width, packed.data()};
    const std::vector<float> table = random.normals(rows * width), weight = random.normals(width);
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < tokens; t++) ids.push_back(static_cast<int32_t>(random.below(rows)));
    std::vector<float> x(static_cast<size_t>(tokens * width)), normed = x;
    std::vector<float> y(static_cast<size_t>(tokens * hidden)), z = y;
    Program p;
    gather(p, table.data(), rows, width, ids.data(), tokens, x.data());
    add_norm(p, x.data(), tokens, width, weight.data(), normed.data());
    p.add(tile_product, {p.at(normed.data()), number(FLOAT32), p.size(tokens), number(width), number(width), number(1),
                         p.at(&tiles), number(0), number(0), p.at(y.data()), number(hidden), number(FLOAT32)});
    doubled(p, y.data(), tokens, hidden, z.data());

    std::vector<float> x2 = x, normed2 = normed, y2 = y, z2 = z;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < width; i++) x2.data()[t * width + i] = table.data()[ids.data()[t] * width + i];
    xh_rms_norm(x2.data(), FLOAT32, tokens, 1, width, 0, width, weight.data(), FLOAT32, 1e-6, normed2.data());
    const TileJob job{&tiles, nullptr, y2.data(), hidden, FLOAT32, FLOAT32};
    xh_tile_product(normed2.data(), FLOAT32, tokens, width, width, &job, 1);
    for (size_t i = 0; i < z2.size(); i++) z2[i] = y2[i] + y2[i];

    int64_t stamps[5] = {};
    for (int round = 0; round < 50; round++) {
        std::fill(z.begin(), z.end(), 0.0f);
        if (p.run(round % 2 ? stamps : nullptr)) return check.fail("a program fails");
        if (z != z2) return check.fail("a program gives other bits than its kernels");
    }
    for (int i = 0; i < 4; i++)
        check.that(stamps[i] > 0 && stamps[i] <= stamps[i + 1], "times of commands do not ascend");
}

void attend(Program &p, const std::vector<float> &data, const int32_t *start, const int32_t *lengths,
            const int32_t *table, std::vector<float> &out) {
    std::vector<Argument> a{p.at(data.data()), p.at(data.data()), p.at(data.data()), p.at(start),
                            p.at(lengths),     p.at(table),       number(0),         p.at(out.data()),
                            p.at(out.data() + 64)};
    for (int64_t n : {2, 1, 1, 16, 16, 16, 16, 4, 16, 2, 2, 2}) a.push_back(number(n));
    for (int64_t n : {256, 16, 16, 1, 256, 16, 16, 1}) a.push_back(number(n)); // strides of keys and values
    for (double x : {1.0, 0.0}) a.push_back(real(x));
    for (int64_t n : {0, 0, 0, 0, 1}) a.push_back(number(n));
    p.add(attention, a);
}

// A program whose second of three commands is wrong: the first ran, the third did not.
template <class Add> void fails(Check &check, int64_t failure, const std::string &what, Add add) {
    const std::vector<float> one(16, 1.0f);
    std::vector<float> before(16), after(16);
    Program p;
    doubled(p, one.data(), 1, 16, before.data());
    add(p);
    doubled(p, one.data(), 1, 16, after.data());
    check.that(p.run() == 2, what + ": another command is blamed, or none");
    check.that(p.failure == failure, what + ": failure is " + std::to_string(p.failure));
    check.that(before[15] == 2 && after[0] == 0, what + ": what ran before and behind it is wrong");
}

} // namespace

void check_program(Check &check) {
    for (int64_t tokens : {1, 2, 9}) a_chain(check, tokens);
}

void check_faults(Check &check) {
    Random random;
    const std::vector<float> data = random.normals(1024);
    std::vector<float> out(2048, 7.0f);
    const std::vector<float> untouched = out;
    const int32_t ids[] = {1, 4, 2}, low[] = {-1, 0, 0};
    fails(check, 2, "an index beyond the rows", [&](Program &p) { gather(p, data.data(), 4, 16, ids, 3, out.data()); });
    fails(check, 1, "a negative index", [&](Program &p) { gather(p, data.data(), 4, 16, low, 3, out.data()); });
    const Part part{FLOAT32, 0, 4, reinterpret_cast<const uint8_t *>(data.data()), 64};
    fails(check, 2, "an index beyond a table", [&](Program &p) {
        p.add(embedding, {p.at(ids), number(0), number(3), p.at(&part), number(1), number(16), number(FLOAT32),
                          p.at(out.data())});
    });
    const int32_t slots[] = {0, 1, 64};
    fails(check, 3, "a slot beyond the cache", [&](Program &p) {
        p.add(write_cache, {p.at(data.data()), number(FLOAT32), number(3), number(1), number(16), number(16),
                            number(16), p.at(slots), p.at(out.data()), number(FLOAT32), number(4),
                            number(16), number(256), number(16), number(16), number(1)});
    });
    const int32_t start[] = {0, 1, 2}, lengths[] = {20, 20}, table[] = {0, 1, 2, 4}, holes[] = {0, -1, 2, 3};
    const int32_t long_lengths[] = {20, 40}, backward[] = {0, 2, 1}, many[] = {0, 1, 9}, good[] = {0, 1, 2, 3};
    fails(check, 2, "a block beyond the cache",
          [&](Program &p) { attend(p, data, start, lengths, table, out); });
    fails(check, 1, "a block that is missing", [&](Program &p) { attend(p, data, start, lengths, holes, out); });
    fails(check, 2, "a length beyond the table", [&](Program &p) { attend(p, data, start, long_lengths, good, out); });
    fails(check, 2, "starts that descend", [&](Program &p) { attend(p, data, backward, lengths, good, out); });
    fails(check, 2, "starts beyond the tokens", [&](Program &p) { attend(p, data, many, lengths, good, out); });
    fails(check, -1, "an unknown type", [&](Program &p) {
        p.add(norm, {p.at(data.data()), number(7), number(1), number(1), number(16), number(0), number(16),
                     p.at(data.data()), number(FLOAT32), real(1e-6), p.at(out.data())});
    });
    check.that(out == untouched, "a command that fails wrote something");
}
