/* A library that is no backend. */
int foreign(void);

int foreign(void)
{
    return 0;
}
