/* Runs a fuzz target on each file of a directory and on every prefix of each file. This makes the target an
 * ordinary test that needs no fuzzer, and prints TAP. Usage: fuzz_NAME DIRECTORY, or fuzz_NAME FILE to try
 * one file. */
#include <dirent.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

#define MOST_BEGINNING 4096

/* In memory of just that size, so that a sanitizer sees every byte beyond it. */
static void run(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
    if (bytes > 0)
        memcpy(copy, data, bytes);
    LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
}

static int run_file(const char *path)
{
    static uint8_t data[4 << 20];
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        perror(path);
        return -1;
    }
    size_t bytes = fread(data, 1, sizeof data, f);
    fclose(f);
    run(data, bytes);
    for (size_t n = 0; n < bytes && n < MOST_BEGINNING; n++)
        run(data, n);
    return 0;
}

static int run_directory(const char *path)
{
    struct dirent **names;
    int n = scandir(path, &names, NULL, alphasort), number = 0, bad = 0;
    for (int i = 0; i < n; i++) {
        char file[4096];
        if (names[i]->d_name[0] != '.') {
            snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
            int r = run_file(file);
            printf("%s %d - %s\n", r < 0 ? "not ok" : "ok", ++number, names[i]->d_name);
            fflush(stdout);
            bad += r < 0;
        }
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    printf("1..%d\n", number);
    return number == 0 || bad > 0;
}

int main(int argc, char **argv)
{
    struct stat st;
    if (argc != 2 || stat(argv[1], &st) < 0) {
        fprintf(stderr, "usage: %s DIRECTORY|FILE\n", argv[0]);
        return 2;
    }
    return S_ISDIR(st.st_mode) ? run_directory(argv[1]) : run_file(argv[1]) < 0;
}
